"""Agreement between the rounds of a grader that is part code."""

from pathlib import Path

from skillmix.catalog.combinations import Combination
from skillmix.experiment.experiment import experiment_of
from skillmix.grading.answers import Answer
from skillmix.grading.points import Ballot, StudentText
from skillmix.grading.reader import Reading
from skillmix.report.records import ReportOptions
from skillmix.report.write import write_report
from skillmix.scores.graders import round_agreement
from skillmix.steps.run import run_checked

COMBINATION = Combination("c", ("anaphora", "metaphor"), "Sewing")
"""Code can check the first skill and not the second."""


def ballot(grader: str, *votes: tuple[float, ...]) -> Ballot:
    text = StudentText("s", COMBINATION, 0, Answer("Words.", "fine"))
    return Ballot(text, grader, len(votes), tuple(Reading((*points, None), None) for points in votes))


FLIPPING = ((1.0, 1.0, 1.0, 1.0), (1.0, 0.0, 1.0, 1.0), (1.0, 1.0, 1.0, 0.0))
"""Skills, topic and sense; code has decided the first skill in every round."""


def test_skills_that_code_decides_stand_apart_from_those_that_the_model_votes_on() -> None:
    agreements = round_agreement("r", [ballot("mixed", *FLIPPING)] * 2, {"mixed"})

    rows = {(a.kind, a.decider): a for a in agreements}
    assert list(rows) == [("skill", "model"), ("skill", "code"), ("topic", "model"), ("sense", "model")]
    assert rows["skill", "model"].units == rows["skill", "code"].units == 2
    assert rows["skill", "model"].flips == 2 / 3
    assert rows["skill", "code"].flips is rows["skill", "code"].alpha is None


def test_a_grader_without_code_votes_on_every_skill() -> None:
    skill, *_ = round_agreement("r", [ballot("judge", *FLIPPING)], {"mixed"})

    assert (skill.kind, skill.decider, skill.units, skill.flips) == ("skill", "model", 2, 1 / 3)


def test_a_report_separates_what_the_model_and_the_code_of_a_mixed_grader_decide(in_folder: Path) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["mixed"], "settings": ["all"]}
    document = {
        "name": "mixed",
        "catalog": "verifiable",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"mixed": {"model": "rules:scripted:grader?noise=0.4", "rounds": 3}},
        "steps": [{**step, "k": [1], "combinations": 6, "generations": 1}],
    }
    run = run_checked(experiment_of(document, source="test")).run

    page = write_report([run], output=in_folder / "report", options=ReportOptions(figures=False)).page

    lines = (page.parent / "tables" / "rounds.csv").read_text(encoding="utf-8").splitlines()
    rows = [line.split(",") for line in lines]
    assert rows[0] == ["grader", "criterion", "decided by", "criteria of texts", "flips", "alpha"]
    assert rows[1] == ["mixed", "skill", "code", "6", "", ""]
    assert [row[1:3] for row in rows[2:]] == [["topic", "model"], ["sense", "model"]]
    assert all(float(row[4]) > 0 for row in rows[2:])
