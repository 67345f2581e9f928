"""`make same` finds every difference that counts, and none between two runs of the same code."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tools.same import __main__ as same
from tools.same.compare import differences, normalised
from tools.same.outputs import ROOT

SCORES = [{"k": 1, "value": 0.5, "at": "2026-01-02T03:04:05+00:00"}, {"k": 2, "value": 0.25, "skills": ["a", "b"]}]
LOG = """eval: 300 calls made, 0 found; the run: 40 %, about 3 min left
cost: 300 calls made, 0 found, 1 s, 1 s of CPU time
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal folders of outputs of one part."""
    part = tmp_path / "old" / "smoke"
    (part / "report").mkdir(parents=True)
    (part / "scores.json").write_text(json.dumps(SCORES), encoding="utf-8")
    (part / "votes.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in SCORES), encoding="utf-8")
    (part / "run.stderr.txt").write_text(LOG, encoding="utf-8")
    (part / "report/figure.png").write_bytes(b"\x89PNG\xff\x00")
    (part / "runs/smoke/d/dataset").mkdir(parents=True)
    (part / "runs/smoke/d/dataset/train.jsonl").write_text('{"key": "a"}\n', encoding="utf-8")
    (part / "runs/smoke/texts.jsonl").write_text('{"text": "A text."}\n', encoding="utf-8")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    return tmp_path / "old", tmp_path / "new"


def found(folders: tuple[Path, Path]) -> list[str]:
    return [str(difference) for difference in differences(*folders)]


def rewrite(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")


def test_equal_folders_have_no_difference(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert same.main(["compare", *map(str, folders)]) == 0
    assert capsys.readouterr().out == "0 of 6 files differ\n"


def test_a_changed_number_in_json_is_named_by_its_path(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(folders[1] / "smoke/scores.json", "0.25", "0.26")

    assert same.main(["compare", *map(str, folders)]) == 1
    assert capsys.readouterr().out == "smoke/scores.json: $[1].value: 0.25 → 0.26\n1 of 6 files differ\n"


@pytest.mark.parametrize(
    ("before", "after", "about"),
    [
        ('"k": 1,', '"k": 1.0,', "$[0].k: 1 → 1.0"),
        ('"k": 1,', '"k": true,', "$[0].k: 1 → true"),
        ('["a", "b"]', '["a"]', "$[1].skills: 2 → 1 values"),
        ('"k": 1, ', "", "$[0].k: only the old one has it"),
        ('"k": 2, "value": 0.25', '"value": 0.25, "k": 2', "line 1: "),
        ('"k": 1, "value": 0.5', '"k": 3, "value": 0.6', "$[0].k: 1 → 3 (and 1 more)"),
    ],
)
def test_every_change_of_a_json_value_is_found(folders: tuple[Path, Path], before: str, after: str, about: str) -> None:
    rewrite(folders[1] / "smoke/scores.json", before, after)

    [difference] = found(folders)

    assert difference.startswith(f"smoke/scores.json: {about}")


def test_json_lines_are_named_by_line_and_path(folders: tuple[Path, Path]) -> None:
    rewrite(folders[1] / "smoke/votes.jsonl", "0.25", "0.26")

    assert found(folders) == ["smoke/votes.jsonl: line 2: $.value: 0.25 → 0.26"]


@pytest.mark.parametrize("side", [0, 1])
def test_a_missing_file_is_a_difference(folders: tuple[Path, Path], side: int) -> None:
    (folders[side] / "smoke/report/figure.png").unlink()

    has_it = ("new", "old")[side]
    assert found(folders) == [f"smoke/report/figure.png: only the {has_it} outputs have it"]


def test_a_changed_line_is_shown(folders: tuple[Path, Path]) -> None:
    rewrite(folders[1] / "smoke/run.stderr.txt", "cost: 300", "cost: 301")

    shown = "cost: {} calls made, 0 found, TIME of CPU time"
    assert found(folders) == [f"smoke/run.stderr.txt: line 2: {shown.format(300)} → {shown.format(301)}"]


def test_a_lost_last_line_is_found(folders: tuple[Path, Path]) -> None:
    file = folders[1] / "smoke/run.stderr.txt"
    file.write_text(file.read_text(encoding="utf-8").rstrip("\n"), encoding="utf-8")

    assert found(folders) == ["smoke/run.stderr.txt: the new one ends after line 2, the old one goes on"]


def test_a_changed_byte_of_a_figure_is_found(folders: tuple[Path, Path]) -> None:
    (folders[1] / "smoke/report/figure.png").write_bytes(b"\x89PNG\xff\x01")

    [difference] = found(folders)

    assert difference.startswith("smoke/report/figure.png: ") and difference.endswith("(SHA-256)")


def test_times_and_measured_seconds_are_the_same(folders: tuple[Path, Path]) -> None:
    part = folders[1] / "smoke"
    for name in ("scores.json", "votes.jsonl"):
        rewrite(part / name, "2026-01-02T03:04:05", "2027-11-12T13:14:15")
    rewrite(part / "run.stderr.txt", "40 %, about 3 min left", "38 %, at least 2 h 10 min left (not measured yet: m1)")
    rewrite(part / "run.stderr.txt", "1 s, 1 s of CPU time", "3 min, 75 s of CPU time")

    assert found(folders) == []


@pytest.mark.parametrize("name", ["texts.jsonl", "d/dataset/train.jsonl"])
def test_the_results_in_the_folder_of_a_run_count(folders: tuple[Path, Path], name: str) -> None:
    rewrite(folders[1] / "smoke/runs/smoke" / name, '": "', '": "another ')

    [difference] = found(folders)

    assert difference.startswith(f"smoke/runs/smoke/{name}: line 1: $.")


@pytest.mark.parametrize(
    "name", ["run.sqlite", "people/ann.sqlite", "before-migration/journal/calls.sqlite", "around.json"]
)
def test_how_a_run_is_kept_does_not_count(folders: tuple[Path, Path], name: str) -> None:
    file = folders[1] / "smoke/runs/smoke" / name
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_bytes(b"SQLite")

    assert found(folders) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("report: /tmp/skillmix-same-abc/outputs/x", "report: /var/tmp/deep/skillmix-same-_z9/outputs/x"),
        ('{"seconds": 1.5, "tokens_per_second": 10.0}', '{"seconds": 2e-05, "tokens_per_second": 99.5}'),
        ('"transformers_version": "4.57.1"', '"transformers_version": "5.0"'),
        ("a\neval: begins, 1,200 calls\nb", "a\nb"),
        ("a\neval: 300 of at most 1,200 calls, 12/s; the run: 20 %\nb", "a\nb"),
        ("a\nd1: 61 s: 50 s writing, 11 s grading; the GPU worked in 78 % of the time\nb", "a\nd1: less than 0.1 s\nb"),
        ("a\nd1: 61 s: 50 s writing, 11 s grading\nb", "a\nd1: 2 h 10 min\nb"),
        ("openai:m@http://127.0.0.1:3001/v1", "openai:m@http://127.0.0.1:45678/v1"),
        (
            '{"tag": "skx0123456789abcdef", "since": "2026-11-16 13:20"}',
            '{"tag": "skxfedcba9876543210", "since": "2027-01-02 03:04"}',
        ),
        (
            "f/01234567-89ab-cdef-0123-456789abcdef_samples.jsonl",
            "f/11234567-89ab-cdef-0123-456789abcdef_samples.jsonl",
        ),
        ('"evaluation_id": "paper/me/weak/1795028693"', '"evaluation_id": "paper/me/weak/1895028693"'),
        ('<section id="time">1 s</table><p>a', '<section id="time">\n2 s</table><p>a'),
    ],
)
def test_what_may_differ_is_the_same(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("report: /tmp/skillmix-same-abc/outputs/x", "report: /tmp/skillmix-same-abc/outputs/y"),
        ('"evaluation_id": "paper/me/weak/1795028693"', '"evaluation_id": "paper/me/strong/1795028693"'),
        ("eval: 300 calls made, 0 found", "eval: 301 calls made, 0 found"),
        ("m1: step 4 of 4, loss 10.7803, 7,369 tokens/s", "m1: step 4 of 4, loss 10.7804, 7,369 tokens/s"),
        ('{"tokens": 1550, "seconds": 1.5}', '{"tokens": 1551, "seconds": 1.5}'),
        ("d1, k = 1: yield 0.417, about 8 s left", "d1, k = 1: yield 0.418, about 8 s left"),
    ],
)
def test_what_counts_is_not_forgiven_beside_what_does_not(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_a_skipped_part_is_named(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for side in folders:
        (side / "training").mkdir()
        (side / "training/skipped.txt").write_text("training: torch is not installed\n", encoding="utf-8")

    assert same.main(["compare", *map(str, folders)]) == 0
    assert "skipped: training: torch is not installed\n" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["check", "no-such-revision"], ["check", "."], ["write", "."]])
def test_what_cannot_be_compared_is_one_line(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert same.main(words) == 2

    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


def test_the_default_is_the_revision_before_the_latest_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], cwd=tmp_path, check=True)

    monkeypatch.setattr(same, "ROOT", tmp_path)
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")

    assert same.default_revision() == "HEAD~1"
    (tmp_path / "new.py").touch()
    assert same.default_revision() == "HEAD"


def write_quick_part(folder: Path) -> Path:
    assert same.main(["write", str(folder), "--only", "python"]) == 0
    return folder


def test_two_runs_of_the_same_code_are_equal(tmp_path: Path) -> None:
    first, second = (write_quick_part(tmp_path / name) for name in ("first", "second"))

    printed = (first / "python/printed.txt").read_text(encoding="utf-8")
    assert printed.count("setting=held-out k=3 metric=full_marks value=") == 1
    votes = "python/printed/run-first-try-votes.jsonl"
    assert (first / votes).read_bytes() == (second / votes).read_bytes() != b""
    calls = [(side / "python/printed/run-first-try-calls.jsonl").read_bytes() for side in (first, second)]
    assert calls[0] != calls[1]  # times
    assert same.main(["compare", str(first), str(second)]) == 0
    rewrite(second / "python/printed.txt", "complete: True", "complete: False")
    assert same.main(["compare", str(first), str(second)]) == 1


def test_a_revision_is_unpacked_as_it_was_committed(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists() or (ROOT / ".git/shallow").exists():
        pytest.skip("the history is not here")

    same.unpack("baseline", tmp_path / "tree")

    assert (tmp_path / "tree/src/skillmix/runs/reading/graded_conversations.py").is_file()
