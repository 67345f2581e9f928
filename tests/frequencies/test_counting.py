"""Measuring skill frequencies end to end: known shares are recovered, and a killed run can be resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import skillmix
from skillmix.calls import GradeKey
from skillmix.catalog.files import load_catalog
from skillmix.checkers.template_student import TemplateStudent
from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.frequencies.counting import FrequencyWanted, count_skills, estimate_counting
from skillmix.frequencies.frequency_file import load_result, upper_shares
from skillmix.runs.run import new_run
from skillmix.runs.scheduler import StopReason
from skillmix.runs.verdicts import judge_of
from skillmix.steps.run import run_checked
from tests.commands.command_line import run as run_command
from tests.frequencies.corpora import made_texts, passage, write_catalog, write_jsonl

TRUE_SHARES = (0, 0.01, 0.03, 0.06, 0.1, 0.3, 0.6, 1)
SHARES = {f"skill {letter}": share for letter, share in zip("abcdefgh", TRUE_SHARES, strict=True)}
FILES = ("frequencies.json", "exclude.yaml", "passages.jsonl", "sample.json", "experiment.yaml")


@pytest.fixture
def made(in_folder: Path) -> dict[str, float]:
    """A catalog, a corpus of 400 texts in two files, and the true shares."""
    texts, truth = made_texts(SHARES, size=400)
    write_catalog(in_folder / "made", list(SHARES))
    write_jsonl(in_folder / "corpus/a.jsonl", texts[:150])
    write_jsonl(in_folder / "corpus/b.jsonl.gz", texts[150:])
    return truth


def wanted(**changes: object) -> FrequencyWanted:
    settings: dict[str, object] = {
        "corpus": (Path("corpus"),),
        "grader": {"model": "scripted:grader"},
        "catalog": "made",
        "n": 200,
        "words": 20,
        "skills_per_call": 3,
    }
    return FrequencyWanted(**{**settings, **changes})  # type: ignore[arg-type]


def test_known_shares_of_a_made_corpus_are_recovered_within_their_intervals(made: dict[str, float]) -> None:
    held = []
    for seed in range(5):
        result = count_skills(wanted(seed=seed, run=f"seed-{seed}", n=150)).result
        assert result.passages == 150 and result.corpus["passages"] == 400
        assert result.unknown == 0
        held += [one.low <= made[one.skill] <= one.high for one in result.skills if one.low is not None and one.high]
        exact = {one.skill: one.share for one in result.skills}
        assert (exact["skill a"], exact["skill h"]) == (0, 1)

    assert len(held) == 5 * len(SHARES)
    assert sum(held) >= 36  # 95% intervals: 38 of 40 are expected, fewer than 36 in 4% of such tests


def test_a_sample_of_the_whole_corpus_counts_it_exactly(made: dict[str, float]) -> None:
    result = count_skills(wanted(n=5000)).result

    assert result.passages == 400
    assert {one.skill: one.share for one in result.skills} == pytest.approx(made)


def test_the_exclude_list_has_the_skills_at_the_threshold_or_above(made: dict[str, float], in_folder: Path) -> None:
    count_skills(wanted(n=5000, list_file=Path("mine.yaml")))

    listed = yaml.safe_load((in_folder / "mine.yaml").read_text(encoding="utf-8"))
    assert sorted(listed["skills"]) == sorted(skill for skill, share in made.items() if share >= 0.05)
    assert (in_folder / "runs/frequency/exclude.yaml").read_bytes() == (in_folder / "mine.yaml").read_bytes()


def test_unreadable_rows_are_unknown_and_the_intervals_still_hold_the_truth(made: dict[str, float]) -> None:
    grader = {"model": "scripted:grader?unreadable=0.6", "attempts": 1}
    counted = count_skills(wanted(grader=grader, n=300))

    assert not counted.is_complete
    assert 0 < counted.result.unknown < 300 * len(SHARES) / 3
    for one in counted.result.skills:
        assert one.bound_low is not None and one.bound_high is not None and one.share is not None
        assert one.bound_low <= one.share <= one.bound_high
        assert one.bound_low - 0.08 <= made[one.skill] <= one.bound_high + 0.08


def test_a_grader_that_refuses_leaves_unknown_answers_and_says_so(made: dict[str, float]) -> None:
    counted = count_skills(wanted(grader={"model": "scripted:grader?refusal=0.3"}, n=100))

    assert counted.counts.failed
    assert counted.result.unknown > 0
    assert all(one.asked == 100 for one in counted.result.skills)


def test_a_larger_sample_asks_only_about_the_new_passages(made: dict[str, float]) -> None:
    first = count_skills(wanted(n=50))
    second = count_skills(wanted(n=80))
    again = count_skills(wanted(n=80))
    smaller = count_skills(wanted(n=50))

    assert (first.counts.called, second.counts.called, again.counts.called) == (150, 90, 0)
    assert again.result == second.result
    assert smaller.result == first.result and smaller.counts.called == 0


def test_a_spent_budget_leaves_a_smaller_random_sample_and_can_be_raised(made: dict[str, float]) -> None:
    stopped = count_skills(wanted(max_calls=120))

    assert stopped.counts.stopped is StopReason.BUDGET
    assert {one.asked for one in stopped.result.skills} == {40}
    assert stopped.result.unknown == 0
    whole = count_skills(wanted(max_calls=None))
    assert whole.counts.called == 600 - 120
    assert whole.result == count_skills(wanted(run="other")).result


def test_another_corpus_grader_or_length_is_refused_under_the_same_run(made: dict[str, float], in_folder: Path) -> None:
    count_skills(wanted(n=20))
    before = {name: (in_folder / "runs/frequency" / name).read_bytes() for name in FILES}

    for changes in (
        {"words": 30},
        {"seed": 1},
        {"skills_per_call": 5},
        {"grader": {"model": "scripted:grader?noise=0.1"}},
    ):
        with pytest.raises(UserError, match="exists with another"):
            count_skills(wanted(n=20, **changes))
    write_jsonl(in_folder / "corpus/c.jsonl", [passage(n) for n in range(5000, 5200)])
    with pytest.raises(UserError, match="another corpus"):
        count_skills(wanted(n=20))

    assert {name: (in_folder / "runs/frequency" / name).read_bytes() for name in FILES} == before


def test_a_corpus_that_moved_or_was_touched_is_the_same_corpus(made: dict[str, float], in_folder: Path) -> None:
    first = count_skills(wanted(n=20))
    (in_folder / "corpus").rename(in_folder / "moved")
    os.utime(in_folder / "moved/a.jsonl", (1, 1))

    second = count_skills(wanted(n=20, corpus=(Path("moved"),)))

    assert second.counts.called == 0
    assert second.result == first.result


def test_a_damaged_sample_is_refused(made: dict[str, float], in_folder: Path) -> None:
    count_skills(wanted(n=20))
    file = in_folder / "runs/frequency/passages.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("Text number", "Test number", 1), encoding="utf-8")

    with pytest.raises(UserError, match="is damaged"):
        count_skills(wanted(n=20))


def test_code_recovers_the_shares_of_skills_in_template_texts(in_folder: Path) -> None:
    catalog = load_catalog("verifiable")
    student = TemplateStudent(catalog.templates, judge_of(catalog))
    plain = "The town has a mill near a river where people fish in the evening before they go home"
    made = {"simile": 0.3, "tag question": 0.1, "giving thanks with a reason": 0.02}
    clauses = {skill: student.write([skill], catalog.topics[0]) for skill in made}
    texts = []
    for number in range(1000):
        shown = [clauses[skill] for skill, share in made.items() if number % 50 < share * 50]
        texts.append(" ".join([f"{plain} {number}.", *(clause.text for clause in shown if clause)]))
    write_jsonl(in_folder / "corpus/a.jsonl", texts)

    result = count_skills(wanted(catalog="verifiable", grader={"model": "rules:"}, n=400, words=100)).result

    found = {one.skill: one for one in result.skills}
    for skill, share in made.items():
        one = found[skill]
        assert one.low is not None and one.high is not None
        assert one.low <= share <= one.high, skill
    assert result.prompt_hash is None
    assert {"simile", "tag question"} <= set(result.common)


def test_code_and_a_model_share_the_skills_of_a_mixed_grader(in_folder: Path) -> None:
    write_catalog(in_folder / "made", ["simile", "skill b"])
    write_jsonl(
        in_folder / "corpus/a.jsonl", [f"{passage(n, ['skill b'])} It is as cold as a stone." for n in range(30)]
    )

    counted = count_skills(wanted(grader={"model": "rules:scripted:grader"}, n=30, words=100))

    assert {one.skill: one.share for one in counted.result.skills} == {"simile": 1, "skill b": 1}
    assert counted.counts.called == 30  # only the skill without a checker was asked about
    with pytest.raises(UserError, match="no checker exists for"):
        count_skills(wanted(grader={"model": "rules:"}, run="code"))


CHILD = """
import asyncio, sys
from skillmix.frequencies.counting import count_skills
from skillmix.models.scripted import ScriptedModel
from tests.frequencies.test_counting import wanted

log = open(sys.argv[1], "a", encoding="utf-8", buffering=1)

async def slow(self, requests):
    async for request in requests:
        log.write(f"{request.key}\\n")
        await asyncio.sleep(float(sys.argv[3]))
        yield request, self.answer(request)

ScriptedModel.serve = slow
count_skills(wanted(n=100, grader={"model": "scripted:grader?noise=0.1&unreadable=0.2"}, run=sys.argv[2]))
"""


def child(log: str, run: str, *, seconds: float = 0) -> "subprocess.Popen[bytes]":
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, log, run, str(seconds)], env=environment, stdout=quiet, stderr=quiet
    )


def journaled(run: str) -> set[str]:
    with new_run(run).read() as journal:
        return {str(call.key) for call in journal.calls("grade")}


def test_a_killed_count_resumes_and_writes_identical_files(made: dict[str, float], in_folder: Path) -> None:
    first = child("first.log", "killed", seconds=0.02)
    deadline = time.monotonic() + 60
    log = in_folder / "first.log"
    while not log.exists() or len(log.read_text(encoding="utf-8").splitlines()) < 60:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    stored = journaled("killed")
    assert 0 < len(stored) < 300

    assert child("second.log", "killed").wait(60) == 0
    assert child("whole.log", "whole").wait(60) == 0

    for name in FILES[:4]:
        assert (in_folder / "runs/killed" / name).read_bytes() == (in_folder / "runs/whole" / name).read_bytes(), name
    assert journaled("killed") == journaled("whole")
    asked_again = set((in_folder / "second.log").read_text(encoding="utf-8").splitlines())
    assert not asked_again & stored  # nothing that was in the journal
    logs = [(in_folder / f"{name}.log").read_text(encoding="utf-8").split() for name in ("first", "second", "whole")]
    assert set(logs[0]) | set(logs[1]) == set(logs[2])
    assert len(logs[2]) == len(set(logs[2]))


def test_the_keys_of_calls_name_passages_and_no_student(made: dict[str, float]) -> None:
    counted = count_skills(wanted(n=10))

    with counted.run.read() as journal:
        keys = [call.key for call in journal.calls("grade")]
        chunks = journal.combinations()
    assert {key.student for key in keys} == {"corpus"}
    assert {key.combination for key in keys} == set(chunks)
    passages = (counted.run.path / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    assert {key.text for key in keys if isinstance(key, GradeKey)} == {json.loads(line)["id"] for line in passages}


def test_an_estimate_makes_no_call_and_writes_nothing(made: dict[str, float], in_folder: Path) -> None:
    estimate = estimate_counting(wanted())

    assert (estimate.passages, estimate.calls, estimate.cost_usd) == (200, 600, 0.0)
    assert estimate.input_tokens > 600 * 100
    assert not (in_folder / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 0}, "n = 0"),
        ({"words": 3}, "words = 3"),
        ({"skills_per_call": 0}, "skills_per_call = 0"),
        ({"threshold": 1.5}, "threshold 1.5"),
        ({"grader": {"model": "scripted:grader", "rounds": 3}}, "rounds = 3"),
        ({"grader": {"model": "nobody:x"}}, "nobody"),
        ({"corpus": (Path("gone"),)}, "gone does not exist"),
        ({"catalog": "gone"}, "no catalog 'gone'"),
        ({"list_file": Path("corpus/a.jsonl")}, "was not written by"),
        ({"max_usd": 1.0, "grader": {"model": "openai:unpriced@https://models.example/v1"}}, "is unknown"),
    ],
)
def test_settings_that_mean_nothing_are_refused_before_anything_is_made(
    made: dict[str, float], in_folder: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        count_skills(wanted(**changes))

    assert not (in_folder / "runs/frequency/run.sqlite").exists()


def test_a_corpus_without_a_passage_is_refused(made: dict[str, float], in_folder: Path) -> None:
    (in_folder / "empty.txt").write_text("Home\n", encoding="utf-8")

    with pytest.raises(UserError, match="has no passage"):
        count_skills(wanted(corpus=(Path("empty.txt"),)))


def experiment(**changes: object) -> dict[str, object]:
    step = {"name": "eval", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["train"], "k": [2]}
    return {
        "name": "uses-list",
        "catalog": "made",
        "exclude": ["file:runs/frequency/exclude.yaml"],
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader"}},
        "steps": [{**step, "combinations": 2, "generations": 1}],
        **changes,
    }


def test_an_experiment_leaves_out_the_counted_skills_and_notices_another_list(
    made: dict[str, float], in_folder: Path
) -> None:
    common = set(count_skills(wanted(n=400)).result.common)
    ran = run_checked(experiment_of(experiment(), source="test", checks_outside=True)).run

    drawn = {skill for cell in ran.cells for combination in cell.combinations for skill in combination.skills}
    assert drawn and not drawn & common
    assert set(ran.experiment.exclude) == common  # the run stores the names, not the path

    count_skills(wanted(n=400, threshold=0.2, run="other"))
    changed = experiment(exclude=["file:runs/other/exclude.yaml"])
    with pytest.raises(UserError, match="exists with another exclude"):
        run_checked(experiment_of(changed, source="test"))


def test_upper_shares_cover_unknown_answers_and_leave_out_common_skills(
    made: dict[str, float], in_folder: Path
) -> None:
    counted = count_skills(wanted(grader={"model": "scripted:grader?unreadable=0.5", "attempts": 1}, n=100))

    stored = load_result(in_folder / "runs/frequency/frequencies.json")
    assert stored == counted.result
    shares = upper_shares(stored)
    for one in stored.skills:
        assert one.bound_high is not None and shares[one.skill] >= one.bound_high
    assert set(upper_shares(stored, exclude=["common", "Skill A"])) == set(SHARES) - set(stored.common) - {"skill a"}
    with pytest.raises(UserError, match="no skill 'skil b'"):
        upper_shares(stored, exclude=["skil b"])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"skills": [{}]}', "nonsense", '{"skills": 5}'])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content, encoding="utf-8")

    with pytest.raises(UserError, match=r"is not a result|is empty"):
        load_result(tmp_path / "a.json")


READERS = (
    "report",
    "scores",
    "graders",
    "status",
    "texts",
    "export --what texts",
    "export --what calls",
    "annotate --rater ann --export ann.csv",
)


def test_commands_that_show_scores_say_that_a_count_has_none(
    made: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    count_skills(wanted(run="asked", n=3))
    count_skills(wanted(run="coded", n=3, catalog="verifiable", grader={"model": "rules:"}))

    for command in READERS:
        for run in ("asked", "coded"):
            name, *options = command.split()
            status, _, err = run_command(capsys, name, run, *options)
            assert (status, f"{run} is a run of skillmix frequency and has no scores" in err) == (2, True), command


def test_a_count_in_the_run_of_an_experiment_is_refused_in_a_few_words(made: dict[str, float]) -> None:
    step = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"], "k": [1]}
    document = {
        "name": "people",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader"}},
        "steps": [{**step, "combinations": 1, "generations": 1}],
    }
    run_checked(experiment_of(document, source="test"))

    with pytest.raises(UserError, match="people already contains an experiment") as error:
        count_skills(wanted(run="people"))

    assert len(str(error.value.hint)) < 100


def test_another_kind_of_import_shows_no_long_values(made: dict[str, float]) -> None:
    count_skills(wanted(run="mine", n=3))

    with pytest.raises(UserError, match="exists with another") as error:
        skillmix.calibrate("scripted:grader", run="mine", size=3)

    assert "seed (0 → not set)" in error.value.message
    assert len(error.value.message) < 400
