"""Replayed text: every kind of source, the same texts for the same numbers, never a whole file in memory."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from skillmix.errors import UserError
from skillmix.training.data.batches import TrainingOrder
from skillmix.training.data.replay import Replay, _endless_texts
from tests.training.data.test_order import examples


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def replay(*sources: Path, limit: int = 50, seed: int = 0, field: str = "text") -> Replay:
    return Replay(sources, tokenize=letters, limit=limit, seed=seed, field=field)


def said(found: Replay, number: int) -> str:
    return "".join(chr(token) for token in found.text(number).tokens)


def write_lines(file: Path) -> None:
    file.write_text("".join(json.dumps({"text": f"row {n} of it"}) + "\n" for n in range(5)), encoding="utf-8")


def write_zipped(file: Path) -> None:
    with gzip.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": f"row {n} of it"}) + "\n" for n in range(5))


def write_table(file: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": [f"row {n} of it" for n in range(5)], "other": range(5)}), file)


@pytest.mark.parametrize(
    ("name", "write"), [("a.jsonl", write_lines), ("a.jsonl.gz", write_zipped), ("a.parquet", write_table)]
)
def test_rows_come_in_order_and_begin_again(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / name)

    found = replay(tmp_path / name)

    assert [said(found, n) for n in range(7)] == [f"row {n % 5} of it" for n in range(7)]
    example = found.text(0)
    assert example.is_replay and not example.is_trained[0] and example.is_trained[1:].all()


def test_a_plain_text_is_cut_at_lines_and_long_lines_anywhere(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one line\n" * 30 + "x" * 500, encoding="utf-8")

    pieces = list(islice(_endless_texts(tmp_path / "a.txt", field="text", size=80), 11))

    assert all(len(piece) <= 80 for piece in pieces)
    assert pieces[0] == "\n".join(["one line"] * 8)
    assert sum(piece.count("x") for piece in pieces[:11]) == 500
    assert len(replay(tmp_path / "a.txt", limit=20).text(0).tokens) == 20


def test_larger_files_are_drawn_more_often_and_folders_are_walked(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "small.txt").write_text("s" * 40, encoding="utf-8")
    (tmp_path / "large.txt").write_text("l" * 360, encoding="utf-8")
    (tmp_path / ".hidden").write_text("no", encoding="utf-8")

    found = replay(tmp_path, limit=10)

    share = np.mean(["s" in said(found, n) for n in range(400)])
    assert [file.name for file in found.files] == ["small.txt", "large.txt"]
    assert 0.05 < share < 0.15


def test_any_step_is_the_same_asked_for_alone_or_in_order(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
    (tmp_path / "b.txt").write_text("".join(f"line {n}\n" for n in range(300)), encoding="utf-8")

    def data() -> TrainingOrder:
        return TrainingOrder(examples(10), batch=4, seed=3, replay=replay(tmp_path, limit=6), replay_ratio=0.6)

    whole = data()
    in_order = [[(e.key, e.tokens.tolist()) for e in whole.step(number)] for number in range(30)]

    for number in (29, 0, 17, 3):
        assert [(e.key, e.tokens.tolist()) for e in data().step(number)] == in_order[number]
    assert sum(key.startswith("replay/") for step in in_order for key, _ in step) == int(30 * 4 * 0.6)


def test_a_large_file_is_never_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "large.jsonl").open("w", encoding="utf-8") as lines:
        for number in range(40_000):
            lines.write(json.dumps({"text": f"{number} " + "words " * 80}) + "\n")
    found = replay(tmp_path / "large.jsonl")

    tracemalloc.start()
    found.text(30_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (tmp_path / "large.jsonl").stat().st_size > 19_000_000
    assert peak < 4_000_000


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("", "contains no text"), ('{"text": "a fine one"}\n{"body": "b"}\n', "a.jsonl:2 has no text under 'text'")],
)
def test_sources_without_text_are_errors(content: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(content, encoding="utf-8")

    with pytest.raises(UserError, match=complaint):
        replay(tmp_path / "a.jsonl").text(1)


def test_a_source_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no .*nothing"):
        replay(tmp_path / "nothing")
