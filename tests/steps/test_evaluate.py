"""Whole experiments on scripted models and on a server on loopback: resumed, extended, killed, under faults."""

import asyncio
import itertools
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import GradeKey, Reply
from skillmix.catalog.combinations import is_reserved
from skillmix.errors import UserError
from skillmix.runs.run import open_run
from skillmix.runs.scheduler import StopReason
from skillmix.scores.cells import CellScore
from skillmix.scores.scoring import run_scores, scored_cells
from skillmix.scores.status import run_status
from skillmix.steps.run import StepFilter, run_experiment
from skillmix.steps.step_kind import RunResult
from tests.runs.databases import attempts
from tests.steps.estimating import dry_run

SMOKE = Path(__file__).parents[2] / "experiments/smoke.yaml"


def experiment(folder: Path, **step: Any) -> Path:
    document = {
        "name": "tiny",
        "students": {"base": {"model": "scripted:student?skill=0.7&marker=0.9&empty=0.05"}},
        "graders": {"judge": {"model": "scripted:grader?noise=0.1&unreadable=0.2", "rounds": step.pop("rounds", 3)}},
        "budget": step.pop("budget", {}),
        "seed": step.pop("seed", 0),
        "steps": [
            {
                "name": "eval",
                "stage": "evaluate",
                "students": ["base"],
                "graders": ["judge"],
                "settings": ["train", "all"],
                "k": [1, 3],
                "combinations": 6,
                "generations": 2,
            }
            | step
        ],
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def run(folder: Path, **step: Any) -> RunResult:
    return run_experiment(experiment(folder, **step))


def full_marks(scores: list[CellScore]) -> dict[tuple[str, int], float | None]:
    return {(s.setting, s.k): s.value for s in scores if s.metric == "full_marks"}


def test_an_experiment_is_complete_and_scored(in_folder: Path) -> None:
    result = run(in_folder)
    scores = run_scores("tiny")

    assert result.is_complete
    assert set(full_marks(scores)) == {("train", 1), ("train", 3), ("all", 1), ("all", 3)}
    assert all(s.combinations == 6 and s.complete + s.ungraded >= 6 for s in scores)
    status = run_status("tiny")
    assert (status.missing, status.failed) == (0, 0)
    assert status.done == result.called


def test_running_again_makes_no_call_and_the_same_scores(in_folder: Path) -> None:
    first = run(in_folder)
    scores = run_scores("tiny")

    again = run(in_folder)

    assert (again.called, again.found) == (0, first.called)
    assert run_scores("tiny") == scores


def test_more_combinations_make_only_the_new_calls(in_folder: Path) -> None:
    small = run(in_folder)
    large = run(in_folder, combinations=9)

    fresh = in_folder / "fresh"
    fresh.mkdir()
    os.chdir(fresh)
    alone = run(fresh, combinations=9)
    assert large.found == small.called
    assert large.called == alone.called - small.called


def test_more_rounds_make_only_the_new_calls(in_folder: Path) -> None:
    three = run(in_folder)
    five = run(in_folder, rounds=5)

    assert five.found == three.called
    with open_run("tiny").read() as journal:
        keys = [call.key for call in journal.calls("grade")]
    assert {key.round for key in keys if isinstance(key, GradeKey)} == {0, 1, 2, 3, 4}


def test_three_rounds_are_three_calls_with_three_seeds(in_folder: Path) -> None:
    run(in_folder)

    with open_run("tiny").read() as journal:
        calls = list(journal.calls("grade"))
    by_text: dict[tuple[str, int], list[Any]] = {}
    for call in calls:
        assert isinstance(call.key, GradeKey)
        by_text.setdefault((call.key.combination, call.key.generation), []).append(call)
    assert len({call.seed for call in calls}) == len(calls)
    replies = [{c.outcome.text for c in group if isinstance(c.outcome, Reply)} for group in by_text.values()]
    assert sum(len(texts) > 1 for texts in replies) > len(replies) / 3


def test_only_an_unreadable_grade_is_asked_for_again(in_folder: Path) -> None:
    run(in_folder)

    with open_run("tiny").read() as journal:
        attempts = [call.key.attempt for call in journal.calls("grade") if isinstance(call.key, GradeKey)]
    first, second = attempts.count(0), attempts.count(1)
    assert 0.08 < second / first < 0.35


def test_settings_share_the_calls_of_combinations_they_have_in_common(in_folder: Path) -> None:
    once = run(in_folder, settings=["train"])
    twice = run(in_folder, settings=["train", "train"])

    assert (twice.called, twice.found) == (0, once.called)


def test_another_seed_is_another_run(in_folder: Path) -> None:
    run(in_folder)

    with pytest.raises(UserError, match="another seed"):
        run(in_folder, seed=1)


def test_a_budget_stops_the_run_and_raising_it_goes_on(in_folder: Path) -> None:
    stopped = run(in_folder, budget={"max_calls": 20})
    assert (stopped.called, stopped.stopped) == (20, StopReason.BUDGET)
    assert run_status("tiny").missing > 0

    assert run(in_folder, budget={"max_calls": 10_000}).is_complete
    assert run_status("tiny").missing == 0


def wait_for_calls(folder: Path, process: subprocess.Popen[Any], calls: int = 1) -> None:
    """Return when a run has stored so many calls, or has ended."""
    journal = folder / "runs/tiny/run.sqlite"
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as connection:
            if connection.execute("SELECT count(*) FROM call").fetchone()[0] >= calls:
                return
        time.sleep(0.02)


def test_killed_at_random_moments_it_ends_with_the_same_scores(in_folder: Path) -> None:
    path = experiment(in_folder, combinations=30, generations=3)
    rng = random.Random(5)
    command = [sys.executable, "-m", "skillmix", "run", str(path)]
    for number in range(4):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_calls(in_folder, process)
        if number:  # the first process dies at once, and leaves most to the others
            time.sleep(0.3 * rng.random())
        process.send_signal(signal.SIGKILL)
        process.wait()
    run_experiment(path)
    killed = run_scores("tiny")

    fresh = in_folder / "fresh"
    fresh.mkdir()
    os.chdir(fresh)
    run_experiment(path)
    assert run_scores("tiny") == killed


def test_under_faults_the_scores_are_those_without(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that relays to the scripted models, and fails in seven ways, each at one call in twenty."""
    from aiohttp import web

    from skillmix.calls import Decoding, GenerateKey, Message, Request
    from skillmix.models.specs import parse_spec
    from skillmix.runs import scheduler
    from tests.models.reading_model import ReadingModel
    from tests.models.stub import DROP, HALF, SILENCE, chat, error, serving

    monkeypatch.setattr(scheduler, "FIRST_WAIT", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    student, grader = (ReadingModel(parse_spec(s)) for s in ("scripted:student?skill=0.7", "scripted:grader?noise=0.1"))
    rng = random.Random(1)

    def good(body: dict[str, Any]) -> web.Response:
        messages = tuple(Message(m["role"], m["content"]) for m in body["messages"])
        request = Request(GenerateKey("x", "x", 0, 1), "x", messages, Decoding(), body["seed"])
        outcome = (student if body["model"] == "student" else grader).answer(request)
        assert isinstance(outcome, Reply)
        return chat(outcome.text)

    def faulty(body: dict[str, Any]) -> web.Response:
        faults = [
            lambda: error(429, "slow down"),
            lambda: error(500, "oops"),
            lambda: DROP,
            lambda: HALF,
            lambda: web.Response(text='{"choices": [', content_type="application/json"),
            lambda: web.json_response({"choices": []}),
            lambda: SILENCE,
        ]
        chosen = int(rng.random() / 0.05)
        return faults[chosen]() if chosen < len(faults) else good(body)

    def scores_with(handler: Any, name: str) -> list[tuple[Any, ...]]:
        async def main() -> None:
            async with serving(handler) as stub:
                document = yaml.safe_load(experiment(in_folder, settings=["train"]).read_text(encoding="utf-8"))
                document["name"] = name
                few = {"concurrency": 64, "timeout": 1.5}
                document["students"] = {"base": {"model": f"openai:student@{stub.address}"} | few}
                document["graders"] = {"judge": {"model": f"openai:grader@{stub.address}"} | few}
                path = in_folder / f"{name}.yaml"
                path.write_text(yaml.safe_dump(document), encoding="utf-8")
                await asyncio.to_thread(run_experiment, path)

        asyncio.run(main())
        return [(s.setting, s.k, s.metric, s.value, s.one_try, s.ungraded) for s in run_scores(name)]

    assert scores_with(faulty, "faulty") == scores_with(good, "good")
    with open_run("faulty").read() as journal:
        tries = attempts(journal)
    reasons = Counter(reason for _, outcome, reason in tries if outcome == "passing")
    assert set(reasons) >= {"HTTP 429", "HTTP 500", "invalid JSON", "no choices", "timeout"}
    assert set(reasons) & {"dropped connection", "broken reply"}
    replies = [key for key, outcome, _ in tries if outcome == "reply"]
    assert len(set(replies)) == len(replies)
    assert 0.2 < sum(reasons.values()) / len(tries) < 0.5


def test_generate_then_grade_is_evaluate(in_folder: Path) -> None:
    both = run(in_folder)
    evaluated = run_scores("tiny")
    document = yaml.safe_load(experiment(in_folder).read_text(encoding="utf-8")) | {"name": "apart"}
    step = {key: value for key, value in document["steps"][0].items() if key != "graders"}
    document["steps"] = [
        step | {"name": "write", "stage": "generate"},
        {"name": "judge", "stage": "grade", "of": ["write"], "graders": ["judge"]},
    ]
    path = in_folder / "apart.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")

    early = run_experiment(path, wanted=StepFilter(stage="grade"))
    assert early.called == 0
    assert (sum(c.left_out for c in early.counts.values()), early.is_complete) == (2 * 6 * 2 * 2, False)
    written = run_experiment(path, wanted=StepFilter(stage="generate"))
    judged = run_experiment(path, wanted=StepFilter(step="judge"))

    assert written.is_complete
    assert judged.is_complete
    assert written.called + judged.called == both.called
    numbers = [(s.setting, s.k, s.metric, s.value, s.one_try) for s in run_scores("apart")]
    assert numbers == [(s.setting, s.k, s.metric, s.value, s.one_try) for s in evaluated]


def test_a_second_grader_grades_what_the_first_did(in_folder: Path) -> None:
    first = run(in_folder)
    document = yaml.safe_load(experiment(in_folder).read_text(encoding="utf-8"))
    document["graders"]["second"] = {"model": "scripted:grader?noise=0.3", "rounds": 1}
    document["steps"].append({"name": "again", "stage": "grade", "of": ["eval"], "graders": ["second"]})
    (in_folder / "tiny.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")

    result = run_experiment(in_folder / "tiny.yaml")

    assert result.counts["eval"].called == 0
    assert 0 < result.counts["again"].called <= first.called / 3
    assert {s.grader for s in run_scores("tiny")} == {"judge", "second"}


def test_a_step_that_is_not_there_is_said(in_folder: Path) -> None:
    with pytest.raises(UserError, match="no grade step") as caught:
        run_experiment(experiment(in_folder), wanted=StepFilter(stage="grade"))

    assert "eval (evaluate)" in str(caught.value.hint)


def test_larger_k_are_left_out_once_a_score_is_below_the_limit(in_folder: Path) -> None:
    weak = {"base": {"model": "scripted:student?skill=0.3"}}
    document = yaml.safe_load(experiment(in_folder, k=[1, 2, 3, 4, 5], stop_below=0.2).read_text(encoding="utf-8"))
    document["students"] = weak
    path = in_folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")

    result = run_experiment(path)
    scores = run_scores("tiny")

    last = {setting: max(s.k for s in scores if s.setting == setting) for setting in ("train", "all")}
    values = full_marks(scores)
    for setting, k in last.items():
        value = values[setting, k]
        assert k < 5
        assert value is not None
        assert value < 0.2
        earlier = [values[setting, smaller] for smaller in range(1, k)]
        assert all(value is not None and value >= 0.2 for value in earlier)
    assert result.is_complete
    assert run_status("tiny").missing == 0
    assert run_experiment(path).called == 0


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_keeps_what_was_answered_and_says_how_to_go_on(in_folder: Path, times: int) -> None:
    path = experiment(in_folder, combinations=60, generations=3)
    process = subprocess.Popen(
        [sys.executable, "-m", "skillmix", "run", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_calls(in_folder, process, calls=20)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    _, said = process.communicate(timeout=30)

    assert process.returncode == 130, said
    assert "run the same command" in said
    assert "Traceback" not in said
    status = run_status("tiny")
    assert status.done > 0
    assert status.missing > 0
    again = run_experiment(path)
    assert again.is_complete
    assert again.found == status.done


def test_a_change_on_the_command_line_reaches_the_run(in_folder: Path) -> None:
    changes = ["steps.eval.k=[2]", "steps.1.combinations=3", "budget.max_calls=1000", "graders.judge.rounds=1"]

    result = run_experiment(experiment(in_folder), changes=changes)

    assert {s.k for s in run_scores("tiny")} == {2}
    assert result.called < 2 * 3 * 2 * 4
    stored = yaml.safe_load((in_folder / "runs/tiny/experiment.yaml").read_text(encoding="utf-8"))
    assert stored["budget"]["max_calls"] == 1000


def on_server(folder: Path, address: str, **more: Any) -> Path:
    document = yaml.safe_load(experiment(folder).read_text(encoding="utf-8")) | more
    document["students"] = {"base": {"model": f"openai:student@{address}"}}
    document["graders"] = {"judge": {"model": f"openai:{more.pop('grader', 'grader')}@{address}"}}
    document.pop("grader", None)
    path = folder / "server.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("status", "models", "grader", "message"),
    [
        (401, [], "grader", "HTTP 401"),
        (200, ["student", "grader"], "nobody", "unknown model"),
    ],
)
def test_a_wrong_key_or_name_of_any_model_is_found_before_the_first_call(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, status: int, models: list[str], grader: str, message: str
) -> None:
    from tests.models.stub import chat, serving

    monkeypatch.setenv("STUDENT_KEY", "sk-secret-secret-secret")

    async def main() -> tuple[str, int]:
        async with serving(lambda body: chat("hi"), models=models, models_status=status) as stub:
            path = on_server(in_folder, stub.address, grader=grader)
            with pytest.raises(UserError) as caught:
                await asyncio.to_thread(run_experiment, path)
            return f"{caught.value.message} {caught.value.hint}", len(stub.bodies)

    said, calls = asyncio.run(main())

    assert message in said
    assert "sk-secret" not in said
    assert calls == 0


def test_a_wrong_address_is_found_before_the_first_call(in_folder: Path) -> None:
    with pytest.raises(UserError, match="no connection"):
        run_experiment(on_server(in_folder, "http://127.0.0.1:9/v1"))


@pytest.mark.parametrize("who", ["student", "grader"])
@pytest.mark.parametrize("fault", ["wrong key", "wrong address", "silent address", "unknown model"])
def test_a_model_that_cannot_be_used_ends_the_command_at_once(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], who: str, fault: str
) -> None:
    """Exit status 2 within ten seconds, one line and a hint, and not one paid call."""
    from skillmix.commands import main as command
    from skillmix.steps import checks
    from tests.models.stub import chat, error, serving

    assert checks._LONGEST_PROBE <= 8
    if fault == "silent address":
        monkeypatch.setattr(checks, "_LONGEST_PROBE", 0.5)

    secret = "sk-secret-0123456789abcdef"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    silence = socket.create_server(("127.0.0.1", 0))

    async def main() -> tuple[int, int]:
        async with serving(lambda body: chat("Answer: x"), models=["good"], models_status=200) as good:
            refused = serving(lambda body: error(401, f"bad key {secret}"), models_status=401)
            async with refused as bad:
                broken = {
                    "wrong key": f"openai:good@{bad.address}",
                    "wrong address": "openai:good@http://127.0.0.1:9/v1",
                    "silent address": f"openai:good@http://127.0.0.1:{silence.getsockname()[1]}/v1",
                    "unknown model": f"openai:nobody@{good.address}",
                }[fault]
                models = {"student": f"openai:good@{good.address}", "grader": f"openai:good@{good.address}"}
                models[who] = broken
                document = yaml.safe_load(experiment(in_folder).read_text(encoding="utf-8"))
                document["students"] = {"base": {"model": models["student"]}}
                document["graders"] = {"judge": {"model": models["grader"]}}
                path = in_folder / "broken.yaml"
                path.write_text(yaml.safe_dump(document), encoding="utf-8")
                status = await asyncio.to_thread(command, ["run", str(path)])
                return status, len(good.bodies) + len(bad.bodies)

    started = time.monotonic()
    status, calls = asyncio.run(main())

    assert time.monotonic() - started < 10
    assert (status, calls) == (2, 0)
    said = capsys.readouterr()
    first, second = said.err.splitlines()
    assert first.startswith(f"error: The {who} ")
    assert second.startswith("hint: ")
    assert secret not in said.err + said.out
    silence.close()


def test_a_limit_in_dollars_needs_prices(in_folder: Path) -> None:
    path = on_server(in_folder, "http://models.example/v1", budget={"max_usd": 5})

    with pytest.raises(UserError, match="price of openai:grader@http"):
        run_experiment(path)


def test_prices_of_the_user_count(in_folder: Path) -> None:
    prices = in_folder / "prices.yaml"
    prices.write_text("'scripted:grader?noise=0.1&unreadable=0.2': {input: 0, output: 1000000}", encoding="utf-8")

    student, grader = dry_run(experiment(in_folder), prices=prices)

    assert (student.calls, grader.calls) == (2 * 48, 3 * 3 * 48)
    assert (student.cost_usd, grader.cost_usd) == (0.0, 3 * 3 * 48 * 1024.0)


def test_a_faulty_price_file_is_refused(in_folder: Path) -> None:
    from skillmix.experiment.costs import load_prices

    prices = in_folder / "prices.yaml"
    prices.write_text("openai:x: {input: -1}", encoding="utf-8")

    with pytest.raises(UserError, match="2 faults"):
        load_prices(prices)


@pytest.mark.parametrize("final", ["fatal", "interrupted by faults"])
def test_no_key_is_written_anywhere(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], final: str
) -> None:
    """Servers that repeat the key in every kind of failure: none of it may reach a file or a line."""
    from aiohttp import web

    from skillmix.commands import main as command
    from skillmix.runs import scheduler
    from tests.models.stub import DROP, HALF, SILENCE, chat, error, serving

    secret = "sk-secret-0123456789abcdef"
    monkeypatch.setenv("STUDENT_KEY", secret)
    monkeypatch.setattr(scheduler, "FIRST_WAIT", 0.001)
    faults = [
        lambda: error(429, f"slow down, {secret}"),
        lambda: error(500, f"key {secret} broke"),
        lambda: web.Response(text=f'{{"choices": [{secret}', content_type="application/json"),
        lambda: web.json_response({"choices": [], "key": secret}),
        lambda: chat("x", message={"refusal": f"no, {secret}"}),
        lambda: error(400, f"content filter: {secret}", code="content_filter"),
        lambda: error(400, f"maximum context length, {secret}"),
        lambda: DROP,
        lambda: HALF,
        lambda: SILENCE,
    ]
    count = itertools.count()
    started = time.monotonic()

    def answer(body: dict[str, Any]) -> web.Response:
        place = next(count)
        if place < 3 * len(faults):
            return faults[place % len(faults)]()
        # The silent calls have run into their timeout by the time that the key is refused.
        is_refused = final == "fatal" and time.monotonic() > started + 2
        return error(401, f"bad key {secret}") if is_refused else chat("Answer: a needle. Explanation: x")

    async def main() -> int:
        async with serving(answer) as stub:
            path = on_server(in_folder, stub.address)
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            for models in (document["students"], document["graders"]):
                for settings in models.values():
                    settings |= {"timeout": 0.5, "concurrency": 8, "key": "STUDENT_KEY"}
            document["steps"][0]["combinations"] = 400 if final == "fatal" else 6
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            return await asyncio.to_thread(command, ["run", str(path)])

    status = asyncio.run(main())

    said = capsys.readouterr()
    assert status == (2 if final == "fatal" else 1)
    assert secret not in said.out + said.err
    with open_run("tiny").read() as journal:
        reasons = {reason for _, _, reason in attempts(journal)}
    wanted = {"HTTP 429", "HTTP 500", "invalid JSON", "no choices", "timeout", "refusal", "prompt filtered"}
    assert reasons >= {*wanted, "prompt too long"}
    files = [path for path in (in_folder / "runs").rglob("*") if path.is_file()]
    assert len(files) >= 2
    for path in files:
        assert secret.encode() not in path.read_bytes(), path


def test_the_smoke_experiment_parses() -> None:
    from skillmix.experiment.experiment import load_experiment

    assert [step.stage for step in load_experiment(SMOKE).steps] == ["evaluate", "report"]


def test_an_evaluation_of_reserved_sets_draws_no_others(in_folder: Path) -> None:
    both = yaml.safe_load(experiment(in_folder, k=[2, 3], settings=["train"], combinations=12).read_text("utf-8"))
    (whole,) = both["steps"]
    both["steps"].append({**whole, "name": "reserved", "sets": "reserved"})
    path = in_folder / "both.yaml"
    path.write_text(yaml.safe_dump(both), encoding="utf-8")

    run_experiment(path)

    cells = {(key.setting, key.k): cell for key, cell in scored_cells("tiny").items()}
    assert set(cells) == {("train", 2), ("train", 3), ("train-reserved", 2), ("train-reserved", 3)}
    for k in (2, 3):
        reserved = cells["train-reserved", k].combinations
        assert len(reserved) == 12
        assert all(is_reserved(c.skills, 0.2) for c in reserved)
        from_whole = [c for c in cells["train", k].combinations if is_reserved(c.skills, 0.2)]
        assert list(reserved[: len(from_whole)]) == from_whole
        assert any(not is_reserved(c.skills, 0.2) for c in cells["train", k].combinations)
    with_more = run_experiment(experiment(in_folder, k=[2], settings=["train"], sets="reserved", combinations=13))
    assert with_more.called < 20  # one more combination


def test_an_early_stop_ends_an_evaluation_of_reserved_sets(in_folder: Path) -> None:
    run(in_folder, k=[2, 3, 4], settings=["train"], sets="reserved", stop_below=1.0, rounds=1)

    assert {score.k for score in run_scores("tiny")} == {2}


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ({"k": [1, 2]}, "needs k of 2 or more"),
        ({"k": [2], "ladder": True}, "remove sets or ladder"),
    ],
)
def test_reserved_sets_that_cannot_be_drawn_are_refused(in_folder: Path, step: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        run(in_folder, sets="reserved", **step)


def test_reserved_sets_need_a_share_of_them(in_folder: Path) -> None:
    document = yaml.safe_load(experiment(in_folder, k=[2], sets="reserved").read_text("utf-8"))
    path = in_folder / "none.yaml"
    path.write_text(yaml.safe_dump(document | {"leakage": {"reserved": 0}}), encoding="utf-8")

    with pytest.raises(UserError, match=r"needs leakage\.reserved above 0"):
        run_experiment(path)


def test_one_step_leaves_out_skills_that_another_draws(in_folder: Path) -> None:
    file = experiment(in_folder, settings=["train"], k=[5], combinations=20, generations=1)
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    document["steps"].append({**document["steps"][0], "name": "uncommon", "exclude": ["common"]})
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

    assert run_experiment(file).is_complete

    common = set(open_run("tiny").catalog.exclude["common"])
    cells = {key.setting: cell for key, cell in scored_cells("tiny").items()}
    assert set(cells) == {"train", "train-without-common"}
    assert any(common & set(c.skills) for c in cells["train"].combinations)
    assert not any(common & set(c.skills) for c in cells["train-without-common"].combinations)
    assert [len(cell.combinations) for cell in cells.values()] == [20, 20]


def test_data_sets_stay_apart_from_an_evaluation_without_some_skills(in_folder: Path) -> None:
    file = experiment(in_folder, settings=["train"], k=[1], combinations=200, generations=1, exclude=["common"])
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    writing = {"stage": "dataset", "writer": "base", "graders": ["judge"], "k": [1]}
    document["steps"].append({**writing, "name": "d1", "target": 400, "exclude": ["metaphor"]})
    document["students"]["base"]["model"] = "scripted:student?skill=1"
    document["graders"]["judge"] = {"model": "scripted:grader", "rounds": 1}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

    data = run_experiment(file).datasets["d1"]

    lineage = yaml.safe_load((data.folder / "skillmix.json").read_text(encoding="utf-8"))
    (cell,) = scored_cells("tiny").values()
    assert not {c.id for c in cell.combinations} & set(lineage["combinations"])
    assert "metaphor" not in lineage["counts"]["skills"] and len(lineage["counts"]["skills"]) > 30


@pytest.mark.parametrize("stage", ["evaluate", "generate", "dataset"])
def test_an_unknown_name_in_the_exclude_list_of_a_step_is_refused(in_folder: Path, stage: str) -> None:
    steps: dict[str, dict[str, Any]] = {
        "evaluate": {"students": ["base"], "graders": ["judge"]},
        "generate": {"students": ["base"], "k": [1]},
        "dataset": {"writer": "base", "graders": ["judge"], "k": [1], "target": 3},
    }
    file = experiment(in_folder)
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    document["steps"] = [{"name": "one", "stage": stage, **steps[stage], "exclude": ["uncommon"]}]
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

    with pytest.raises(UserError, match="No skill named 'uncommon'"):
        run_experiment(file)
    assert not (in_folder / "runs").exists()


def test_a_grader_can_grade_some_texts_of_a_step(in_folder: Path) -> None:
    file = experiment(in_folder)
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    document["graders"]["second"] = {"model": "scripted:grader", "rounds": 1}
    again = {"name": "again", "stage": "grade", "of": ["eval"], "graders": ["second"]}
    document["steps"].append({**again, "students": ["base"], "settings": ["all"], "k": [3]})
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

    assert run_experiment(file).counts["again"].called == 6 * 2

    second = {(key.setting, key.k): cell for key, cell in scored_cells("tiny").items() if key.grader == "second"}
    assert set(second) == {("all", 3)}
    assert all(points for texts in second["all", 3].points for points in texts)
