"""Grader cards of runs: who is the truth, what is pooled, and what scripted graders with known errors get."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import skillmix
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.grading.answers import Answer
from skillmix.grading.points import Ballot, Points, StudentText
from skillmix.grading.reader import Reading
from skillmix.render import WIDTH
from skillmix.runs.run import Run, open_run
from skillmix.scores.grader_cards import card_text, cards_of, graded_run, graded_run_of, run_cards
from skillmix.scores.scoring import run_scores
from skillmix.scores.statistics.against_truth import Measure
from skillmix.steps.run import run_checked
from tests.commands.command_line import run as run_command

Graders = dict[str, dict[str, Any]]
GRADERS: Graders = {
    "careful": {"model": "scripted:grader", "rounds": 1},
    "noisy": {"model": "scripted:grader?noise=0.1&unreadable=0.1", "rounds": 3, "attempts": 1},
}


def made_run(name: str, graders: Graders = GRADERS, *, catalog: str = "paper") -> Run:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": list(graders), "settings": ["all"]}
    document = {
        "name": name,
        "catalog": catalog,
        "students": {"s": {"model": "scripted:student?skill=0.7&empty=0.1"}},
        "graders": graders,
        "steps": [{**step, "k": [1, 2], "combinations": 30, "generations": 2}],
    }
    return run_checked(experiment_of(document, source="test")).run


def test_a_scripted_grader_with_known_errors_gets_them_back(in_folder: Path) -> None:
    cards = {card.grader: card for card in run_cards([made_run("r")], truth="careful")}

    assert list(cards) == ["noisy"]
    card = cards["noisy"]
    rounds = [row for row in card.bias.rows if row.by == "round"]
    assert [row.group for row in rounds] == ["round 1", "round 2", "round 3"]
    for row in rounds:  # each vote is flipped with a probability of .1
        assert row.agreement.low is not None
        assert row.agreement.high is not None
        assert row.agreement.low <= 0.9 <= row.agreement.high
    assert card.stability.unreadable.low is not None
    assert card.stability.unreadable.high is not None
    assert card.stability.unreadable.low <= 0.1 <= card.stability.unreadable.high
    assert card.stability.flips.value == pytest.approx(2 * 0.1 * 0.9, abs=0.04)


def test_raw_scores_are_those_of_the_score_table_and_corrected_ones_those_of_the_truth(in_folder: Path) -> None:
    run = made_run("r")

    (card,) = run_cards([run], truth="careful")

    one_try = {(s.grader, s.k): s.one_try for s in run_scores(run) if s.metric == "full_marks"}
    assert {score.k for score in card.corrected} == {1, 2}
    for score in card.corrected:
        complete = {s.k for s in run_scores(run) if s.grader == "noisy" and s.metric == "full_marks" and not s.ungraded}
        if score.k in complete:
            assert score.raw.value == pytest.approx(one_try["noisy", score.k])
        assert (score.run, score.student, score.setting) == ("r", "s", "all")
        if score.texts == 60:
            assert score.corrected.value == pytest.approx(one_try["careful", score.k])


def test_without_people_and_code_a_grader_is_compared_with_another_and_nothing_is_corrected(in_folder: Path) -> None:
    cards = run_cards([made_run("r")])

    assert [(card.grader, card.truth) for card in cards] == [("careful", "noisy"), ("noisy", "careful")]
    assert all(card.by_kind and not card.corrected for card in cards)


def test_code_is_the_truth_if_there_are_no_people(in_folder: Path) -> None:
    graders: Graders = {"checks": {"model": "rules:"}, "noisy": {"model": "scripted:grader?noise=0.3", "rounds": 1}}
    run = made_run("r", graders, catalog="verifiable")

    cards = {card.grader: card for card in run_cards([run])}

    assert cards["noisy"].truth == "checks"
    assert {score.method for score in cards["noisy"].corrected} == {"truth"}
    assert cards["checks"].truth == "noisy"
    assert cards["checks"].facts.cost_per_text == 0.0
    assert cards["checks"].stability.rounds == 0
    by_name = {card.grader: card.truth for card in run_cards([run], truth="rules")}
    assert by_name == {"noisy": "checks"}


def test_skills_that_code_decides_for_grader_and_truth_are_left_out(in_folder: Path) -> None:
    graders: Graders = {
        "checks": {"model": "rules:"},
        "mixed": {"model": "rules:scripted:grader?noise=0.3", "rounds": 1},
    }

    cards = {card.grader: card for card in run_cards([made_run("r", graders, catalog="verifiable")])}

    assert [row.criterion for row in cards["mixed"].by_kind if row.criterion == "skill"] == []


def test_people_come_before_code_and_their_majority_is_the_truth(in_folder: Path) -> None:
    run = made_run("r", {"judge": {"model": "scripted:grader", "rounds": 1}})
    combination = Combination("c", ("metaphor",), "Sewing")

    def decided(generation: int, votes: dict[str, bool | None]) -> list[tuple[Ballot, Points]]:
        text = StudentText("s", combination, generation, Answer("Words of it.", "fine"))
        return [
            (
                Ballot(text, grader, 1, (Reading((None if vote is None else float(vote), 1.0, 1.0, None), None),)),
                (vote, True, True, True),
            )
            for grader, vote in votes.items()
        ]

    ballots = [
        *decided(0, {"judge": True, "human:a": True, "human:b": True}),
        *decided(1, {"judge": True, "human:a": False, "human:b": None}),
        *decided(2, {"judge": False, "human:a": False}),
        *decided(3, {"judge": False}),
    ]
    graded = graded_run_of(run, ballots, run.rules())

    (card,) = cards_of([graded])

    assert (card.grader, card.truth, card.texts, card.labelled) == ("judge", "people", 4, 3)
    skill = next(row for row in card.by_kind if row.criterion == "skill")
    assert (skill.units, skill.graded) == (2, 3)  # one of two people is unsure about the second text
    assert skill.agreement.value == 1.0
    against_one = {card.grader: card for card in cards_of([graded], truth="human:a")}
    assert against_one["judge"].by_kind[0].units == 3
    assert against_one["human:b"].by_kind[0].units == 1


def test_runs_share_a_card_only_if_the_grader_is_the_same_in_both(in_folder: Path) -> None:
    same = [made_run("one"), made_run("two")]
    other = made_run("three", {**GRADERS, "noisy": {"model": "scripted:grader?noise=0.2", "rounds": 3}})

    cards = run_cards([*same, other], truth="careful")

    assert [(card.grader, card.runs) for card in cards] == [("noisy", ("one", "two")), ("noisy", ("three",))]
    assert cards[0].texts == sum(run_cards([run], truth="careful")[0].texts for run in same)


def test_a_truth_that_nobody_is_is_refused_with_the_names_there_are(in_folder: Path) -> None:
    run = made_run("r")

    with pytest.raises(UserError) as wrong:
        run_cards([run], truth="carefull")
    assert wrong.value.hint is not None
    assert '"careful"' in wrong.value.hint
    with pytest.raises(UserError) as nobody:
        run_cards([run], truth="people")
    assert nobody.value.hint == "No text has been annotated yet."


def test_the_command_prints_cards_that_fit_a_terminal(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    made_run("r")

    for options in ([], ["--wide"], ["--truth", "careful"]):
        status, out, _ = run_command(capsys, "graders", "r", *options)
        assert status == 0
        assert all(len(line) <= WIDTH for line in out.splitlines())
    assert "noisy against careful: " in out
    assert "| s       | all     |  1 |" in out


def test_cards_as_json_are_those_of_python(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    run = made_run("r")

    _, out, _ = run_command(capsys, "graders", "r", "--truth", "careful", "--json")

    (printed,) = json.loads(out)
    (card,) = skillmix.grader_cards(skillmix.open_run("r"), truth="careful")
    kappa = card.by_kind[0].kappa
    assert printed["by_kind"][0]["kappa"] == {"value": kappa.value, "low": kappa.low, "high": kappa.high}
    assert printed["corrected"][0]["method"] == "truth"
    assert graded_run(open_run(run.name)).graders.keys() == {"careful", "noisy"}


def test_a_run_with_one_grader_has_a_card_without_a_truth(capsys: pytest.CaptureFixture[str], in_folder: Path) -> None:
    made_run("r", {"judge": {"model": "scripted:grader", "rounds": 3}})

    status, out, _ = run_command(capsys, "graders", "r")

    assert status == 0
    assert "judge: no other grader graded its" in out
    assert "flips between rounds" in out


def test_a_run_that_is_named_twice_counts_once(in_folder: Path) -> None:
    once = run_cards([made_run("r")], truth="careful")

    assert run_cards(["r", "runs/r", str(in_folder / "runs/r")], truth="careful") == once


def test_a_kappa_below_zero_has_the_minus_and_form_of_all_numbers(in_folder: Path) -> None:
    [card] = run_cards([made_run("r")], truth="careful")
    below = replace(card.by_kind[0], kappa=Measure(-0.37, -0.5, 0.1), alpha=Measure(-0.004, -1.0, 0.2))

    text = card_text(replace(card, by_kind=(below,)), wide=True)

    assert "−.37 [−.50, .10]" in text
    assert ".00 [−1.00, .20]" in text
