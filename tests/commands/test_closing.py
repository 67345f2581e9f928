"""The sentences about the differences between tuned students and their bases."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from skillmix.commands.closing import shown_lines
from skillmix.scores.cells import CellScore
from skillmix.scores.compare import Change, clearest_first
from skillmix.scores.format_effect import FormatEffect, ValidTexts
from skillmix.scores.scoring import scored_run
from skillmix.scores.statistics.differences import Gain
from skillmix.scores.statistics.ratios import ShareDifference
from tests.report.worlds import make_world


def change(student: str, k: int, mean: float, low: float, high: float, **more: Any) -> Change:
    gain = Gain(mean, low, high, 0.5, combinations=40, seeds=1, partitions=1, unit="combinations", values=())
    return Change("r", student, "base", (1,), more.get("grader", "rules"), more.get("setting", "all"), k, gain)


def score(student: str, k: int, value: float, **more: Any) -> CellScore:
    facts: dict[str, Any] = dict.fromkeys(CellScore.__dataclass_fields__)
    facts |= {"student": student, "grader": "rules", "setting": "all", "k": k, "metric": "full_marks", "sets": "all"}
    facts |= {"value": value, "low": value / 2, "high": (1 + value) / 2, "combinations": 40, "complete": 40}
    return CellScore(**{**facts, **more})


SCORES = [score("base", 1, 0.05), score("self-taught", 1, 0.81), score("base", 2, 0.0), score("self-taught", 2, 0.05)]
ONE = change("self-taught", 1, 0.76, 0.60, 0.86)
TWO = change("self-taught", 2, 0.05, -0.02, 0.12)


def test_the_clearest_difference_is_a_sentence_and_the_others_are_a_line_each() -> None:
    lines = shown_lines([TWO, ONE], SCORES, run="quick")

    assert lines[:2] == [
        "With one skill, self-taught earns full marks on .81 [.41, .91] of 40 combinations, base on .05 [.03, .53]: "
        "a difference of +.76 [+.60, +.86], outside noise.",
        "With two skills: self-taught .05 [.03, .53], base .00 [.00, .50], difference +.05 [−.02, +.12], within noise.",
    ]
    assert "includes 0" in lines[2]


def test_clear_means_far_from_zero_and_not_large() -> None:
    wide = change("a", 1, 0.50, 0.01, 0.90)
    loss = change("b", 1, -0.30, -0.45, -0.20)
    noise = change("c", 1, 0.60, -0.10, 0.90)

    assert clearest_first([TWO, noise, wide, loss]) == [loss, wide, noise, TWO]


def test_settings_and_graders_are_named_where_there_are_several() -> None:
    other = change("self-taught", 1, 0.1, -0.1, 0.3, setting="held-out", grader="gpt")
    scores = [*SCORES, *(replace(s, setting="held-out", grader="gpt") for s in SCORES)]

    first, second, _ = shown_lines([ONE, other], scores, run="quick")

    assert first.startswith("With one skill (all, graded by rules), ")
    assert second.startswith("With one skill (held-out, graded by gpt): ")


def test_students_with_different_complete_combinations_are_not_mixed_up() -> None:
    scores = [score("base", 1, 0.05, complete=42), score("self-taught", 1, 0.81, complete=41)]

    [sentence, _] = shown_lines([ONE], scores, run="quick")

    assert "of 41 combinations" in sentence
    assert "base on .05 [.03, .53] of 42: on the 40 that both have, a difference of" in sentence


def test_many_differences_are_cut_and_counted() -> None:
    changes = [change("self-taught", k, 0.1, -0.1, 0.2) for k in range(1, 21)]
    scores = [score(name, k, 0.1) for name in ("base", "self-taught") for k in range(1, 21)]

    lines = shown_lines(changes, scores, run="quick")

    assert len(lines) == 14
    assert lines[12] == "8 more differences: skillmix scores quick"
    assert "With 11 skills" in "\n".join(shown_lines([changes[10]], scores, run="quick"))


def test_a_cell_that_an_early_stop_left_out_is_not_compared() -> None:
    assert shown_lines([TWO], SCORES[:2], run="quick") == []


def test_full_marks_among_valid_texts_and_the_role_of_format_follow_the_difference() -> None:
    scores = [
        score("base", 1, 0.05, format_failures=39, valid_texts=1, among_valid=1.0),
        score("self-taught", 1, 0.81, format_failures=0, valid_texts=40, among_valid=0.8),
    ]
    few, many = ValidTexts(valid=1, combinations=1, written=40), ValidTexts(valid=40, combinations=40, written=40)
    hidden = replace(ONE, format=FormatEffect(few, many, None, "hides skill"))
    enough = FormatEffect(many, many, ShareDifference(0.02, -0.05, 0.09), "explains")

    [unknown, _] = shown_lines([hidden], scores, run="quick")
    [explained, _] = shown_lines([replace(ONE, format=enough)], scores, run="quick")

    assert unknown.endswith(
        "outside noise. Full marks among texts with a valid format: self-taught .80 of 40, base 1.00 of 1. "
        "Skill cannot be compared: base has 1 text with a valid format, of 40."
    )
    assert explained.endswith(
        "Format explains it: among texts with a valid format the difference is +.02 [−.05, +.09], within noise."
    )


def test_lineage_decides_who_is_tuned(in_folder: Path) -> None:
    rates = {"base": "skill=0.1", "m1": "skill=0.95&topic=1&sense=1&length=1", "other": "skill=0.9"}
    make_world(in_folder, "world", rates, settings=["train"], k=[1], combinations=20, generations=1)
    scored = scored_run("world")

    lines = shown_lines(scored.changes, scored.scores, run="world")

    assert lines[0].startswith("With one skill, m1 earns full marks on ")
    assert lines[0].endswith(", outside noise.")
    assert len(lines) == 2
    assert "other" not in "\n".join(lines)
