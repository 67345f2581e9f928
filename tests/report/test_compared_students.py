"""Every pair of students, as the page of two students shows it."""

from pathlib import Path
from typing import Any

import pytest

from skillmix.render import in_words
from skillmix.scores.comparisons import compare_students
from tests.report.conftest import inside
from tests.report.test_pages import chunk
from tests.report.worlds import World


def items(folder: Path, kind: str) -> list[Any]:
    files = sorted((folder / "data").glob(f"{kind}-*.js"), key=lambda file: int(file.stem.split("-")[1]))
    found = [chunk(file) for file in files]
    return [item for content in found if isinstance(content, list) for item in content]


def index_of(folder: Path) -> dict[str, Any]:
    found = chunk(folder / "data" / "index.js")
    assert isinstance(found, dict)
    return found


def test_every_pair_of_students_is_there_once(folder: Path) -> None:
    pairs = [tuple(pair[:3]) for pair in index_of(folder)["pairs"]]

    students = ["base", "m1", "m12", "m123"]
    assert pairs == [("world", a, b) for i, a in enumerate(students) for b in students[i + 1 :]]


@pytest.mark.parametrize(("first", "second"), [("base", "m123"), ("m1", "m12")])
def test_the_combinations_that_differ_are_those_of_the_command(
    folder: Path, world: World, first: str, second: str
) -> None:
    with inside(world.run.parents[1]):
        compared = compare_students("world", first, second)
    expected = {
        (d.grader, d.setting, d.k, d.combination): (
            d.first.generation,
            d.second.generation,
            d.second.value > d.first.value,
        )
        for d in compared.texts
    }
    ids = [combination[0] for combination in items(folder, "texts")]
    rows = items(folder, "pairs")
    (pair,) = [pair for pair in index_of(folder)["pairs"] if pair[:3] == ["world", first, second]]

    found = {}
    for row, command in zip((rows[number] for number in pair[4]), compared.rows, strict=True):
        assert (row["wins"], row["losses"]) == (len(row["won"]), len(row["lost"])) == (command.wins, command.losses)
        assert row["bounds"] == [command.difference, command.low, command.high]
        for is_win, listed in ((True, row["won"]), (False, row["lost"])):
            for number, one, other in listed:
                found[row["grader"], row["setting"], row["k"], ids[number]] = (one, other, is_win)
    assert found == expected


def test_marks_are_the_texts_without_their_words(folder: Path) -> None:
    texts, marks = items(folder, "texts"), items(folder, "marks")

    assert len(texts) == len(marks)
    for full, short in zip(texts, marks, strict=True):
        assert full[:3] == short[:3]
        assert [[*text[:4], [graded[:2] for graded in text[4]]] for text in full[3]] == short[3]


def test_a_sentence_counts_the_rows_that_are_clear_in_both_directions(folder: Path) -> None:
    rows = items(folder, "pairs")
    for _, first, second, sentences, numbers in index_of(folder)["pairs"]:
        signs = [rows[number]["clear"] for number in numbers]
        if len(numbers) == 1:
            assert sentences == [f"{second} against {first}: {rows[numbers[0]]['verdict']}."] * 2
            continue
        if not any(signs):
            nothing = f"No difference between {second} and {first} is found in {in_words(len(signs))} comparisons."
            assert sentences == [nothing, nothing]
            continue
        for sentence, name, other, sign in ((sentences[0], second, first, 1), (sentences[1], first, second, -1)):
            more, fewer, rest = (in_words(signs.count(number)) for number in (sign, -sign, 0))
            assert sentence == (
                f"{name} has more full marks than {other} in {more} of {in_words(len(signs))} comparisons and fewer in "
                f"{fewer}; in {rest} no difference is found."
            )
