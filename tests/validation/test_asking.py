"""A calibration as a run: it resumes after a kill, grows, and repeats no call."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import skillmix
from skillmix.calls import CallProblem, Outcome, Request
from skillmix.errors import UserError
from skillmix.models.scripted import ScriptedModel
from tests.validation.made_sets import entries, entry, write_set

GRADER = "scripted:grader?miss=0.3&invent=0.2&unreadable=0.1"
KILLED = """
import asyncio, os, signal
from skillmix.steps.calibrating import calibrated
from skillmix.validation.calibration import planned
from skillmix.models.scripted import ScriptedModel
async def serve(self, requests):
    calls = 0
    async for request in requests:
        await asyncio.sleep(0.002)
        calls += 1
        if calls > 100:
            os.kill(os.getpid(), signal.SIGKILL)
        yield request, self.answer(request)
ScriptedModel.serve = serve
calibrated(planned({grader!r}, set="mine.yaml", run="cal"))
"""


def test_a_killed_calibration_ends_as_one_that_was_not_killed(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", entries(80))
    whole = skillmix.calibrate(GRADER, set=file, run="whole/cal")

    killed = subprocess.run([sys.executable, "-c", KILLED.format(grader=GRADER)], cwd=in_folder, check=False)
    resumed = skillmix.calibrate(GRADER, set=file, run="cal")

    assert killed.returncode == -signal.SIGKILL
    assert resumed.as_json() == whole.as_json()
    assert resumed.counts.found > 0
    assert resumed.counts.called < whole.counts.called


def test_a_finished_calibration_makes_no_call(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_set(in_folder / "mine.yaml", entries(20))
    first = skillmix.calibrate(GRADER, set=file)

    monkeypatch.setattr(ScriptedModel, "answer", refuse)
    second = skillmix.calibrate(GRADER, set=file)

    assert second.as_json() == first.as_json()
    assert (second.counts.called, second.counts.found) == (0, first.counts.called)


def refuse(self: ScriptedModel, request: Request) -> Outcome:
    raise AssertionError(f"{request.key} was asked again")


def test_a_set_can_grow_change_its_order_and_its_labels_without_a_call_made_twice(in_folder: Path) -> None:
    texts = [*entries(20), entry(0) | {"text": "A second text about the same skill and topic."}]
    first = skillmix.calibrate("scripted:grader", set=write_set(in_folder / "mine.yaml", texts), rounds=1)
    changed = [entry(30), *reversed(texts)]
    changed[-1] = changed[-1] | {"label": "near"}

    second = skillmix.calibrate("scripted:grader", set=write_set(in_folder / "mine.yaml", changed), rounds=1)

    assert (first.counts.called, second.counts.called) == (21, 1)
    assert [wrong.known.text for wrong in second.wrong if wrong.label is False] == [changed[-1]["text"]]


def test_a_subset_asks_about_its_texts_alone_and_the_rest_can_follow(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", entries(30))

    part = skillmix.calibrate("scripted:grader", set=file, rounds=1, size=12)
    whole = skillmix.calibrate("scripted:grader", set=file, rounds=1)

    assert (part.counts.called, part.card.texts, part.plan.whole_size) == (12, 12, 30)
    assert (whole.counts.called, whole.card.texts) == (18, 30)


def test_more_rounds_extend_a_calibration_and_fewer_count_only_the_first(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", entries(20))
    grader = "scripted:grader?noise=0.4"

    one = skillmix.calibrate(grader, set=file, rounds=1)
    three = skillmix.calibrate(grader, set=file, rounds=3)
    again = skillmix.calibrate(grader, set=file, rounds=1)

    assert (one.counts.called, three.counts.called, again.counts.called) == (20, 40, 0)
    assert again.as_json() == one.as_json()
    assert three.card.stability.rounds == 60


def test_two_graders_can_share_a_run(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", entries(10))

    good = skillmix.calibrate("scripted:grader", set=file, rounds=1, run="both")
    bad = skillmix.calibrate("scripted:grader?noise=1", set=file, rounds=1, run="both")

    assert good.card.by_kind[0].agreement.value == 1.0
    assert bad.card.by_kind[0].agreement.value == 0.0
    assert good.folder != bad.folder


def test_another_prompt_under_the_same_name_is_refused(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", entries(5))
    skillmix.calibrate("scripted:grader", set=file, run="cal")

    with pytest.raises(UserError, match="with another prompt, such as grade/"):
        skillmix.calibrate({"model": "scripted:grader", "prompts": "claude"}, set=file, run="cal")


def test_a_limit_in_dollars_stops_a_calibration_and_a_higher_one_continues_it(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", entries(40))
    prices = in_folder / "prices.yaml"
    prices.write_text("scripted:grader: {input: 1000, output: 1000}", encoding="utf-8")

    part = skillmix.calibrate("scripted:grader", set=file, rounds=1, prices=prices, max_usd=8.0)
    whole = skillmix.calibrate("scripted:grader", set=file, rounds=1, prices=prices, max_usd=1000.0)

    assert 0 < part.counts.called < 40
    assert not part.is_complete
    assert part.calls.cost_usd is not None and part.calls.cost_usd <= 8.0
    assert part.counts.called + whole.counts.called == 40
    assert whole.is_complete


def test_a_call_without_a_reply_is_a_missing_vote_and_is_repeated(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_set(in_folder / "mine.yaml", entries(12))
    answer = ScriptedModel.answer

    def sometimes(self: ScriptedModel, request: Request) -> Outcome:
        assert request.seed is not None
        return CallProblem("failed", "out of order") if request.seed % 3 == 0 else answer(self, request)

    monkeypatch.setattr(ScriptedModel, "answer", sometimes)
    broken = skillmix.calibrate("scripted:grader", set=file, rounds=1)
    monkeypatch.setattr(ScriptedModel, "answer", answer)
    mended = skillmix.calibrate("scripted:grader", set=file, rounds=1)

    assert 0 < len(broken.counts.failed) == broken.undecided["skill"]
    assert mended.counts.called == len(broken.counts.failed)
    assert mended.is_complete


def test_code_can_be_calibrated_and_makes_no_call(in_folder: Path) -> None:
    catalog = skillmix.load_catalog("verifiable")
    skill, topic = catalog.skills[0], catalog.topics[0]
    texts = [{"skill": skill.name, "topic": topic, "text": "Nothing of the kind is here.", "label": "near"}]

    made = skillmix.calibrate("rules:", set=write_set(in_folder / "mine.yaml", texts), catalog="verifiable")

    assert made.counts.called == 0
    assert made.card.by_kind[0].specificity.value == 1.0


def test_code_decides_its_skills_and_a_model_the_rest_of_a_mixed_grader(in_folder: Path) -> None:
    catalog = skillmix.load_catalog("verifiable")
    text = {"skill": "alliteration", "topic": catalog.topics[0], "label": "shows"}
    texts = [text | {"text": "Greta grew giant gourds behind the garage."}]

    made = skillmix.calibrate(
        "rules:scripted:grader", set=write_set(in_folder / "mine.yaml", texts), catalog="verifiable", rounds=1
    )

    assert made.counts.called == 1
    assert made.texts[0].points == (True, False, True)


def test_code_that_cannot_check_a_skill_is_refused(in_folder: Path) -> None:
    with pytest.raises(UserError, match="no checker exists for"):
        skillmix.calibrate("rules:", set="paper")

    assert list(in_folder.iterdir()) == []
