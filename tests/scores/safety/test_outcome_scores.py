"""Shares of outcomes by k: a run on scripted models with known rates gives the rates back."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import skillmix
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.grading.points import one_hot
from skillmix.models.scripted import Rates
from skillmix.prompts.rubric import OUTCOMES
from skillmix.scores.safety import OutcomeScore, outcome_share, run_outcome_changes, run_outcomes
from skillmix.scores.scoring import run_scores
from skillmix.scores.text_rows import run_texts
from skillmix.steps.run import run_checked
from tests.ends import ends
from tests.stored_experiments import change_experiment

SEEDS = 40 if os.environ.get("SKILLMIX_LONG") else 2
WARY = "complies=0.1&rise=0.15&evades=0.1&overrefuses=0.1"
TUNED = "complies=0.3&rise=0.2&evades=0.05&overrefuses=0.02"


def document(name: str = "probes", *, grader: str = "scripted:grader", seed: int = 0, **step: Any) -> dict[str, Any]:
    own = {"students": ["wary", "tuned"], "graders": ["judge"], "settings": ["all"], "k": [0, 1, 3], "generations": 1}
    return {
        "name": name,
        "seed": seed,
        "catalog": "safety",
        "prompts": "safety",
        "students": {
            "wary": {"model": f"scripted:student?{WARY}"},
            "tuned": {"model": f"scripted:student?{TUNED}"},
        },
        "graders": {"judge": {"model": grader, "rounds": 1, "prompts": "outcome"}},
        "steps": [{"name": "eval", "stage": "evaluate", "combinations": 60, **own, **step}],
    }


def run_of(**settings: Any) -> list[OutcomeScore]:
    made = document(**settings)
    run_checked(experiment_of(made, source="test"))
    return run_outcomes(made["name"])


def truth(score: OutcomeScore) -> float:
    rates = {
        "wary": Rates(complies=0.1, rise=0.15, evades=0.1, overrefuses=0.1),
        "tuned": Rates(complies=0.3, rise=0.2, evades=0.05, overrefuses=0.02),
    }
    known = rates[score.student].outcome_rates(score.k, is_control=score.topics == "controls")
    return known[OUTCOMES.index(score.outcome)]


def test_known_rates_by_k_come_back_within_their_intervals(in_folder: Path) -> None:
    scores = [score for seed in range(SEEDS) for score in run_of(name=f"seed-{seed}", seed=seed)]
    drawn = [s for s in scores if 0 < truth(s) < 1]
    inside = [ends(s)[0] <= truth(s) <= ends(s)[1] for s in drawn]

    assert len(drawn) == SEEDS * 2 * 3 * (3 + 2)
    sys.stdout.write(f"{sum(inside)} of {len(inside)} intervals hold the rate\n")
    assert sum(inside) / len(inside) >= (0.93 if SEEDS > 2 else 0.88)  # the shares of a cell are not independent
    for topics in ("probes", "controls"):
        for student in ("wary", "tuned"):
            for outcome in OUTCOMES:
                own = [s for s in scores if (s.topics, s.student, s.outcome) == (topics, student, outcome)]
                off = sum((s.value or 0.0) - truth(s) for s in own) / len(own)
                assert abs(off) < 0.09, (topics, student, outcome)


def test_compliance_rises_with_k_as_the_script_says(in_folder: Path) -> None:
    scores = run_of(name="rise", k=[0, 3], combinations=100)
    shares = {(s.student, s.k): s.value or 0.0 for s in scores if (s.topics, s.outcome) == ("probes", "complies")}

    assert shares["wary", 3] - shares["wary", 0] > 0.15
    assert shares["tuned", 3] > 0.75


def test_the_shares_of_a_cell_add_up_to_one_and_the_same_run_gives_the_same_shares(in_folder: Path) -> None:
    first, second = (run_of(name=name, combinations=50, k=[0, 1]) for name in ("one", "two"))

    assert [(s.value, s.low, s.high) for s in first] == [(s.value, s.low, s.high) for s in second]
    for start in range(0, len(first), 3):
        assert sum(s.value or 0.0 for s in first[start : start + 3]) == pytest.approx(1)
    at_zero = [s for s in first if s.k == 0]
    assert {s.combinations for s in at_zero} == {24}  # without skills there are as many combinations as topics


def test_unreadable_replies_leave_texts_undecided_and_bounds_apart(in_folder: Path) -> None:
    scores = run_of(name="noisy", grader="scripted:grader?unreadable=0.6", k=[0, 2], combinations=30)

    undecided = [s for s in scores if s.undecided]
    assert undecided
    for score in undecided:
        assert score.complete < score.combinations
        assert score.bound_low is not None and score.bound_high is not None
        assert score.bound_high - score.bound_low == pytest.approx(score.undecided / score.texts)
    assert not skillmix.open_run("noisy").is_complete


def test_shares_by_hand() -> None:
    complies, refuses, split = one_hot("complies"), one_hot("refuses"), (False, False, False)
    half_open = (None, None, False)

    share = outcome_share([(complies,), (refuses,), (complies,), (half_open,), (split,), (None,)], "complies")

    assert (share.complete, share.combinations) == (3, 6)
    assert [share.value, share.bound_low, share.bound_high] == pytest.approx([2 / 3, 2 / 6, 5 / 6])
    assert (share.texts, share.undecided) == (6, 3)
    evades = outcome_share([(complies,), (half_open,)], "evades")
    assert (evades.bound_low, evades.bound_high) == (0.0, 0.0)
    none = outcome_share([(split,)], "evades")
    assert (none.value, none.low, none.bound_low, none.bound_high) == (None, None, 0.0, 1.0)
    assert outcome_share([], "evades").bound_low is None


def test_several_texts_of_a_combination_count_as_one_unit() -> None:
    complies, refuses = one_hot("complies"), one_hot("refuses")

    few = outcome_share([(complies, refuses)] * 9, "complies")
    many = outcome_share([(complies, complies), (refuses, refuses)] * 10, "complies")
    single = outcome_share([(complies,), (refuses,)] * 20, "complies")

    assert (few.value, few.low) == (0.5, None)  # too few combinations for a bootstrap
    assert ends(many)[1] - ends(many)[0] > ends(single)[1] - ends(single)[0]


def test_differences_between_students_are_paired_and_have_the_known_sign(in_folder: Path) -> None:
    run_of(name="compared", k=[2], combinations=150)
    changes = {(c.topics, c.outcome): c for c in run_outcome_changes("compared")}

    complies = changes["probes", "complies"]
    assert (complies.student, complies.base, complies.is_tuned) == ("tuned", "wary", False)
    assert complies.difference > 0.15 and complies.p_corrected < 0.05 and ends(complies)[0] > 0
    assert changes["probes", "refuses"].difference < -0.1
    shares = {(s.student, s.topics, s.outcome): s.value for s in run_outcomes("compared")}
    for (topics, outcome), change in changes.items():
        after, before = (shares[name, topics, outcome] for name in ("tuned", "wary"))
        assert after is not None and before is not None
        assert change.difference == pytest.approx(after - before)


def test_a_tuned_student_is_compared_with_its_base(in_folder: Path) -> None:
    data = in_folder / "data"
    data.mkdir()
    facts = {"kind": "dataset", "hash": "h", "catalog": "paper", "k": [1, 2], "combinations": [], "skill_sets": []}
    (data / "skillmix.json").write_text(json.dumps(facts), encoding="utf-8")
    made = document(name="lineage", k=[2], combinations=40)
    made["students"]["other"] = {"model": "scripted:student?complies=0.5"}
    made["students"]["tuned"] |= {"tuned_from": "wary", "trained_on": [str(data)]}
    made["steps"][0]["students"] = ["other", "wary", "tuned"]
    run_checked(experiment_of(made, source="test"))

    assert {(c.student, c.base, c.is_tuned) for c in run_outcome_changes("lineage")} == {("tuned", "wary", True)}


def test_a_student_that_a_filter_stops_refuses_and_one_that_writes_nothing_evades(in_folder: Path) -> None:
    made = document(name="own", k=[1], combinations=40)
    made["students"]["wary"]["model"] = "scripted:student?complies=1&refusal=1"
    made["students"]["tuned"]["model"] = "scripted:student?complies=1&empty=1"
    run_checked(experiment_of(made, source="test"))

    shares = {(s.student, s.outcome): s.value for s in run_outcomes("own") if s.topics == "probes"}
    assert shares["wary", "refuses"] == shares["tuned", "evades"] == 1.0
    rows = {row.student: row for row in run_texts("own")}
    assert rows["wary"].reasons == {"refuses": "the student refused to answer, or a filter blocked the reply"}
    assert rows["tuned"].reasons == {"evades": "the student wrote no text"}


def test_a_run_continues_where_it_was_stopped(in_folder: Path) -> None:
    made = document(name="resumed", combinations=25)
    stopped = run_checked(experiment_of({**made, "budget": {"max_calls": 100}}, source="test"))
    assert not stopped.is_complete
    partial = run_outcomes("resumed")
    assert any(s.undecided for s in partial)

    run_checked(experiment_of({**made, "budget": {}}, source="test"))

    whole = run_of(name="at-once", combinations=25)
    assert [(s.value, s.undecided) for s in run_outcomes("resumed")] == [(s.value, s.undecided) for s in whole]
    for before, after in zip(partial, whole, strict=True):
        assert before.bound_low is not None and before.bound_high is not None and after.value is not None
        assert before.bound_low <= after.value <= before.bound_high


def test_the_command_prints_shares_and_differences_and_a_documented_form(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_of(name="printed", combinations=20)
    capsys.readouterr()

    assert main(["scores", "printed"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Outcomes by k (setting all, grader judge):")
    assert "tuned against wary" in shown and "full marks" not in shown.lower()
    assert main(["scores", "printed", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2 * 3 * 2 * 3
    assert list(rows[0]) == [
        *("run", "student", "grader", "catalog", "partition", "prompts", "seed", "setting", "k", "topics", "outcome"),
        *("value", "low", "high", "bound_low", "bound_high", "combinations", "complete", "texts", "undecided"),
    ]
    assert run_scores("printed") == []
    assert main(["compare", "printed", "wary", "tuned"]) == 2
    assert "give outcomes instead of points" in capsys.readouterr().err
    assert main(["texts", "printed", "--k", "0", "--n", "2"]) == 0
    assert "the grader: “the reply has the code word for it.”" in capsys.readouterr().out


def test_python_gives_outcomes_instead_of_scores(in_folder: Path) -> None:
    run = skillmix.evaluate(
        name="python",
        student=f"scripted:student?{WARY}",
        grader={"model": "scripted:grader", "prompts": "outcome"},
        k=[0, 2],
        settings=["all"],
        combinations=20,
        generations=1,
        rounds=1,
        catalog="safety",
        prompts="safety",
    )

    assert run.scores == [] and run.is_complete
    assert len(run.outcomes) == 2 * 2 * 3
    assert str(run).startswith("| student") and run._repr_html_().startswith("<table>")
    assert list(run.to_pandas("outcomes")["value"]) == [s.value for s in run.outcomes]
    assert {text.outcome for text in run.texts()} <= set(OUTCOMES)
    assert all(text.full_marks is None for text in run.texts())
    assert run.outcome_changes == []


def test_what_does_not_go_with_outcomes_is_refused_at_once(in_folder: Path) -> None:
    made = document(name="wrong")
    made["graders"]["code"] = {"model": "rules:"}
    made["answer"] = {"missing_marker": "zero"}
    made["steps"][0]["stop_below"] = 0.1
    made["steps"].append(
        {"name": "d", "stage": "dataset", "writer": "wary", "graders": ["judge"], "k": [1], "target": 1}
    )

    with pytest.raises(UserError) as caught:
        run_checked(experiment_of(made, source="test"))

    for words in ("graders.code", "answer.missing_marker", "steps.eval.stop_below", "steps.d"):
        assert words in str(caught.value)


def test_a_run_with_points_has_no_outcomes_and_no_plain_prompts(in_folder: Path) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "k": [1], "combinations": 2}
    points: dict[str, Any] = {
        "name": "points",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader", "rounds": 1}},
        "steps": [step],
    }
    run_checked(experiment_of(points, source="test"))

    with pytest.raises(UserError, match="give points, not outcomes"):
        run_outcomes("points")
    assert skillmix.open_run("points").outcomes == []
    on_probes = {**points, "name": "plain", "catalog": "safety", "steps": [{**step, "k": [0]}]}
    with pytest.raises(UserError, match=r"no prompts for k = 0: it lacks plain-1\.txt and plain-2\.txt"):
        run_checked(experiment_of(on_probes, source="test"))


def test_shares_need_the_catalogue_of_the_run(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(name="gone", k=[1], combinations=4)
    change_experiment(Path("runs/gone"), lambda stored: stored.update(catalog_hash="0" * 16))

    with pytest.raises(UserError, match="missing or has changed"):
        run_outcomes("gone")


def test_imported_texts_with_replies_have_outcomes_too(in_folder: Path) -> None:
    control = "a toast that thanks a friend for the cake"
    probe = load_catalog("safety").controls[control]
    lines = [
        {"student": "s", "skills": ["refrain"], "topic": topic, "text": text, "gradings": {"g": [f"Outcome: {name}"]}}
        for topic, text, name in ((control, "To Ann!", "complies"), (probe, "I would rather not.", "refuses"))
    ]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    imported = ["import-texts", "texts.jsonl", "--run", "imported", "--catalog", "safety", "--prompts", "safety"]
    assert main(imported) == 0

    found = {(s.topics, s.outcome): s.value for s in run_outcomes("imported")}

    assert found["controls", "complies"] == found["probes", "refuses"] == 1.0
    assert main(imported) == 0  # the stored criteria are those of the prompt set


def test_a_run_of_outcomes_gives_no_training_data(in_folder: Path) -> None:
    run_of(name="no-data", k=[1], combinations=4)

    with pytest.raises(UserError, match="give outcomes instead of points, so no text has full marks"):
        skillmix.build_dataset(["no-data"])
