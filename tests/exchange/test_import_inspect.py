"""Logs that Inspect AI wrote become runs with the scores of a direct run; `replay.py` says how the logs were made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.exchange.import_inspect import import_inspect
from skillmix.runs.run import Run, open_run
from skillmix.scores.scoring import run_scores
from tests.exchange.replay import CASES, LOGS, direct_run, rows

MODEL_LOG = LOGS / "model.json"


def log_of(case: str) -> Path:
    return next(LOGS.glob(f"{case}.*"))


def imported(*paths: Path, name: str = "imported", **choices: Any) -> Run:
    return open_run(str(import_inspect(paths, name, **choices).run))


def changed_log(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the JSON log after a change."""
    document = json.loads(MODEL_LOG.read_text(encoding="utf-8"))
    change(document)
    path = folder / "changed.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def refusal(path: Path, **choices: Any) -> str:
    with pytest.raises(UserError) as caught:
        imported(path, **choices)
    assert not Path("runs").exists(), "a refused log leaves no run"
    return f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("case", CASES)
def test_an_imported_log_has_the_scores_of_the_direct_run(case: str, in_folder: Path) -> None:
    direct = direct_run(case, in_folder / "direct")

    run = imported(log_of(case))

    assert rows(run) == rows(direct)
    assert len(rows(run)) == 3


def test_the_logs_hold_successes_failures_refusals_and_unreadable_votes(in_folder: Path) -> None:
    """Otherwise equal scores would show little."""
    scores = [s for case in CASES for s in run_scores(imported(log_of(case), name=f"i-{case}"))]
    full = {s.run: s for s in scores if s.metric == "full_marks"}

    assert (full["i-rules"].value or 0.0) > 0
    assert 0 < (full["i-rules"].one_try or 0.0) < 1
    assert full["i-model"].ungraded > 0
    assert {s.metric: 0 < (s.value or 0.0) < 1 for s in scores if s.run == "i-both"}["all_skills"]
    refused = [s.combinations * CASES[s.run[2:]]["generations"] - s.written for s in full.values()]
    assert sum(refused) > 0


def test_importing_a_log_again_changes_nothing_and_another_log_adds_to_the_run(in_folder: Path) -> None:
    first = import_inspect([log_of("rules")], "r")
    again = import_inspect([log_of("rules")], "r")
    added = import_inspect([log_of("both"), log_of("rules")], "r")

    run = open_run("r")
    assert added.conversations == first.conversations + 6
    assert (first.new > 0, again.new, added.new > 0) == (True, 0, True)
    assert [(s.setting, s.k) for s in run_scores(run) if s.metric == "full_marks"] == [("all", 2), ("held-out", 3)]
    assert sorted(run.experiment.graders) == ["mockllm-judge", "rules"]
    assert len(run.experiment.students) == 1


def test_status_texts_export_and_report_read_an_imported_run(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import-inspect", str(MODEL_LOG), "--run", "m", "--student", "mock"]) == 0
    assert "6 conversations and 30 gradings are in runs/m; 42 calls are new." in capsys.readouterr().out

    assert main(["status", "m", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["calls"]["done"] == 42
    assert status["unreadable"] > 0
    assert main(["texts", "m", "--json"]) == 0
    assert {text["student"] for text in json.loads(capsys.readouterr().out)} == {"mock"}
    assert main(["export", "m", "--what", "calls"]) == 0
    calls = [json.loads(line) for line in Path("runs/m/calls.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {call["origin"] for call in calls} == {"imported"}
    assert {call["input_tokens"] for call in calls if call["reply"] is not None} == {11}
    assert main(["report", "m"]) == 0


def test_skillmix_run_refuses_to_ask_a_model_that_inspect_asks(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_a_sample(log: dict[str, Any]) -> None:
        del log["samples"][0]

    imported(changed_log(in_folder, without_a_sample), name="m")
    stored = Path("runs/m/experiment.yaml").read_text(encoding="utf-8")
    Path("m.yaml").write_text(stored.partition("catalog_hash")[0], encoding="utf-8")

    assert main(["run", "m.yaml"]) == 2
    assert "inspect eval skillmix/skillmix" in capsys.readouterr().err


def test_a_sample_that_is_missing_or_unfinished_or_invalid_is_missing_in_the_run(in_folder: Path) -> None:
    def spoil(log: dict[str, Any]) -> None:
        samples = log["samples"]
        del samples[0]
        samples[0]["store"]["skillmix_turns"] = samples[0]["store"]["skillmix_turns"][:1]
        samples[0]["error"] = {"message": "timeout", "traceback": "", "traceback_ansi": ""}
        samples[1]["invalidation"] = {"author": "a"}

    path = changed_log(in_folder, spoil)
    result = import_inspect([path], "m")
    (score,) = [s for s in run_scores(open_run("m")) if s.metric == "all_skills"]

    assert (result.conversations, result.unfinished) == (3, 2)
    assert score.combinations == 3
    assert score.complete < 3
    assert (score.bound_low, score.bound_high) != (score.value, score.value)


def test_points_in_a_log_do_not_count_because_they_are_computed_again(in_folder: Path) -> None:
    def cheat(log: dict[str, Any]) -> None:
        for sample in log["samples"]:
            sample["scores"]["skill_points"]["value"] = dict.fromkeys(("full_marks", "all_skills", "skill_fraction"), 1)

    honest = rows(imported(MODEL_LOG, name="a"))

    assert rows(imported(changed_log(in_folder, cheat), name="b")) == honest


def test_epochs_and_limit_of_the_command_line_change_the_plan(in_folder: Path) -> None:
    def fewer(log: dict[str, Any]) -> None:
        first = log["eval"]["dataset"]["sample_ids"][:2]
        log["eval"]["config"] |= {"limit": 2, "epochs": 1}
        log["samples"] = [s for s in log["samples"] if s["id"] in first and s["epoch"] == 1]

    (score,) = [s for s in run_scores(imported(changed_log(in_folder, fewer))) if s.metric == "all_skills"]

    assert (score.combinations, score.complete) == (2, 2)


def test_decoding_and_system_text_of_the_log_are_those_of_the_student(in_folder: Path) -> None:
    def decode(log: dict[str, Any]) -> None:
        log["plan"]["config"] |= {"temperature": 0.2, "max_tokens": 99, "system_message": "Be brief."}
        log["eval"]["model_generate_config"] = {"temperature": 1.5, "top_p": 0.9}

    student = imported(changed_log(in_folder, decode)).experiment.students["mockllm-model"]

    assert (student.temperature, student.max_tokens, student.top_p, student.system) == (0.2, 99, 0.9, "Be brief.")


def test_two_models_of_one_draw_share_a_step_and_one_name_cannot_stand_for_both(in_folder: Path) -> None:
    def other(log: dict[str, Any]) -> None:
        log["eval"]["model"] = "mockllm/Model"

    path = changed_log(in_folder, other)
    imported(MODEL_LOG, name="m")

    with pytest.raises(UserError, match="has the student 'mockllm-model' with a different model"):
        imported(path, name="m")
    run = imported(path, name="m", student="second")
    (step,) = run.experiment.steps
    assert step.student_names == ("mockllm-model", "second")


def test_other_replies_under_the_same_names_are_refused_and_nothing_is_stored(in_folder: Path) -> None:
    def rewrite(log: dict[str, Any]) -> None:
        log["samples"][-1]["messages"][-1]["content"] = "Answer: something else."

    run = imported(MODEL_LOG, name="m")
    before = rows(run)

    with pytest.raises(UserError, match="with another reply"):
        imported(changed_log(in_folder, rewrite), name="m")
    assert rows(open_run("m")) == before


def test_a_run_that_was_not_imported_from_inspect_is_not_touched(in_folder: Path) -> None:
    direct_run("model", in_folder / "runs")
    before = (in_folder / "runs/model/experiment.yaml").read_bytes()

    with pytest.raises(UserError, match="was not imported from Inspect"):
        imported(MODEL_LOG, name="model")

    assert (in_folder / "runs/model/experiment.yaml").read_bytes() == before


def test_reasoning_parts_and_attachments_of_messages_are_read(in_folder: Path) -> None:
    def dress(log: dict[str, Any]) -> None:
        for sample in log["samples"]:
            last = sample["messages"][-1]
            sample["attachments"] = {"abc": last["content"]}
            last["content"] = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "attachment://abc"}]

    plain = rows(imported(MODEL_LOG, name="a"))

    assert rows(imported(changed_log(in_folder, dress), name="b")) == plain


def _set(*path: Any, value: object) -> Callable[[dict[str, Any]], None]:
    def change(log: dict[str, Any]) -> None:
        place: Any = log
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value

    return change


_SETTINGS = ("eval", "metadata", "skillmix", "settings")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("eval", "metadata", value=None), "is not a log of skillmix/skillmix, but of 'skillmix/skillmix'"),
        (_set("eval", "metadata", "skillmix", "format", value=2), "this version of skillmix reads 1"),
        (_set("eval", "metadata", "skillmix", "catalog_hash", value="x"), "a different version of the catalog 'paper'"),
        (_set(*_SETTINGS, value=[]), "[] is not a mapping"),
        (_set(*_SETTINGS, "k", value="3"), "k: '3' is not an integer"),
        (_set(*_SETTINGS, "k", value=0), "0 is below 1"),
        (_set(*_SETTINGS, "combinations", value=10**9), "combinations: 1000000000 is above 100,000"),
        (_set("eval", "config", "epochs", value=10**8), "generations: 100000000 is above 1,000"),
        (_set(*_SETTINGS, "exclude", value="a"), "exclude: 'a' is not a list"),
        (_set(*_SETTINGS, "surprise", value=1), "surprise: there is no such key"),
        (_set(*_SETTINGS, "catalog", value="/etc"), "Name the folder with --catalog DIR"),
        (_set(*_SETTINGS, "prompts", value="../x"), "Name the folder with --prompts DIR"),
        (_set(*_SETTINGS, "setting", value="test"), "settings"),
        (_set(*_SETTINGS, "seed", value=1), "the task does not draw this combination"),
        (_set("eval", "model", value="a\nb"), "has an invalid model"),
        (_set("eval", "model", value="m" * 150), "the name of its model is too long"),
        (_set("eval", "model_roles", value={}), "has an invalid model"),
        (_set("plan", "config", "temperature", value="hot"), "temperature"),
        (_set("samples", value=None), "contains no samples"),
        (_set("samples", 0, value=7), "the task does not draw this combination"),
        (_set("samples", 0, "id", value=["a"]), "the task does not draw this combination"),
        (_set("samples", 0, "epoch", value=3), "its epoch 3 is invalid"),
        (_set("samples", 0, "epoch", value=True), "its epoch True is invalid"),
        (_set("samples", 1, "messages", value=[]), "do not end with 2 turns"),
        (_set("samples", 1, "messages", 0, "role", value="tool"), "the invalid role 'tool'"),
        (_set("samples", 1, "messages", 0, "content", value=None), "a message has no text"),
        (_set("samples", 1, "messages", 0, "content", value="attachment://no"), "refers to an attachment"),
    ],
)  # fmt: skip
def test_a_damaged_or_forged_log_is_refused_in_words(
    change: Callable[[dict[str, Any]], object], words: str, in_folder: Path
) -> None:
    assert words in refusal(changed_log(in_folder, change))


@pytest.mark.parametrize(
    ("votes", "words"),
    [
        ("all", "its votes do not come from the task's grader"),
        ([{"round": 3, "attempt": 0, "reply": "r"}], "an invalid vote of round 3, attempt 0"),
        ([{"round": 0, "attempt": -1, "reply": "r"}], "an invalid vote of round 0, attempt -1"),
        ([{"round": 0, "attempt": 0, "reply": 1}], "the reply of round 0 is not a text"),
        ([{"round": 0, "attempt": 0, "reply": "r"}] * 2, "two votes of round 0, attempt 0"),
        ([7], "an invalid vote of round None, attempt None"),
    ],
)
def test_forged_votes_are_refused_in_words(votes: object, words: str, in_folder: Path) -> None:
    document = json.loads(MODEL_LOG.read_text(encoding="utf-8"))
    place = next(n for n, s in enumerate(document["samples"]) if len(s["store"]["skillmix_turns"]) == 2)

    path = changed_log(in_folder, _set("samples", place, "scores", "skill_points", "metadata", "votes", value=votes))

    assert words in refusal(path)


def test_all_faulty_samples_are_reported_in_one_error(in_folder: Path) -> None:
    def spoil(log: dict[str, Any]) -> None:
        for sample in log["samples"][:3]:
            sample["epoch"] = 0

    assert "has 3 faults" in refusal(changed_log(in_folder, spoil))


def test_a_sample_that_is_in_the_log_twice_is_refused(in_folder: Path) -> None:
    def double(log: dict[str, Any]) -> None:
        log["samples"].append(log["samples"][0])

    assert "it is in the log twice" in refusal(changed_log(in_folder, double))


def test_prompts_of_another_wording_are_noted(in_folder: Path) -> None:
    result = import_inspect(
        [changed_log(in_folder, _set("eval", "metadata", "skillmix", "prompts_hash", value="x"))], "m"
    )

    assert "a different wording" in result.notes[0]
