"""Agreement between the rounds of a grader that is part code."""

from skillmix.catalog.combinations import Combination
from skillmix.grading.answers import Answer
from skillmix.grading.ballots import Ballot, StudentText
from skillmix.grading.reader import Reading
from skillmix.scores.graders import round_agreement

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
