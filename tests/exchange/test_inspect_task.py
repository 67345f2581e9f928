"""The task inside Inspect AI itself, with its mock model; skipped where inspect_ai is not installed."""

import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from skillmix.exchange.import_inspect import import_inspect
from skillmix.runs.run import open_run
from skillmix.scores.scoring import run_scores
from tests.exchange.replay import CASES, direct_run, evaluated, rows

pytest.importorskip("inspect_ai", reason="inspect_ai is too large for the set-up of the tests")
pytestmark = pytest.mark.filterwarnings("ignore")  # Inspect's own packages warn about each other

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("case", CASES)
def test_an_evaluation_by_inspect_has_the_scores_of_the_direct_run(case: str, in_folder: Path) -> None:
    direct = direct_run(case, in_folder / "direct")

    log, replay = evaluated(case, direct, in_folder / "logs")
    run = open_run(str(import_inspect([Path(log.location)], "imported").run))

    assert (log.status, replay.left) == ("success", 0)
    assert rows(run) == rows(direct)
    # Inspect's own summary has our numbers too, because the reducer leaves out combinations with an unscored text.
    shown = {score.name: (score.metrics["mean"].value, score.scored_samples) for score in log.results.scores}
    assert shown == {s.metric: (pytest.approx(s.value), s.complete) for s in run_scores(run)}


def test_an_unreadable_grade_leaves_the_sample_unscored_and_a_refusal_scores_zero(in_folder: Path) -> None:
    direct = direct_run("model", in_folder / "direct")
    log, _ = evaluated("model", direct, in_folder / "logs")
    scores = [sample.scores["skill_points"] for sample in log.samples]

    unscored = [score for score in scores if math.isnan(score.value["full_marks"])]
    assert unscored
    assert {score.reason for score in unscored} == {"grader_failed"}
    rules_log, _ = evaluated("rules", direct_run("rules", in_folder / "other"), in_folder / "logs2")
    refused = [s.scores["skill_points"] for s in rules_log.samples if s.output.stop_reason == "content_filter"]
    assert refused
    assert {(score.value["full_marks"], score.reason) for score in refused} == {(0.0, "refusal")}


def mock(**outputs: Any) -> Any:
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    def answer(*_: Any) -> Any:
        output = ModelOutput.from_content("mockllm/model", "Answer: A short text.\nExplanation: none.")
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    return get_model("mockllm/model", custom_outputs=answer, memoize=False)


def test_a_task_without_a_grader_stops_before_the_student_is_paid(in_folder: Path) -> None:
    from inspect_ai import eval

    from skillmix.exchange.inspect_task import skillmix

    (log,) = eval(skillmix(k=1, combinations=1, generations=1), model=mock(), log_dir="logs", display="none")

    assert log.status == "error"
    assert "grader" in log.error.message
    assert not log.stats.model_usage


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"catalog": "verifyable"}, 'did you mean "verifiable"'),
        ({"k": 0}, "0 is below 1"),
        ({"setting": "test"}, "held-out"),
        ({"grader": "rules"}, "no checker exists for"),
        ({"catalog": "verifiable", "rounds": 3}, "rules: always gives the same grade"),
        ({"rounds": 2}, "must be odd"),
        ({"grader": "people"}, "is not one of rules, model, both"),
        ({"grader_prompts": "none"}, "has no grader prompt 'none'"),
        ({"catalog": "verifiable", "k": 500}, "skills"),
    ],
)
def test_bad_arguments_are_refused_in_words(arguments: dict[str, Any], words: str) -> None:
    from skillmix.exchange.inspect_task import skillmix

    with pytest.raises(ValueError, match=r"\w") as caught:
        skillmix(**arguments)

    assert words.casefold() in str(caught.value).casefold()


_SCRIPT = """
import sys
from inspect_ai import eval
from inspect_ai.model import ModelOutput, ModelUsage, get_model

def answer(*_):
    output = ModelOutput.from_content("mockllm/model", "Answer: A short text.\\nExplanation: none.")
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output

arguments = {"k": 2, "catalog": "verifiable", "combinations": 2, "generations": 1}
model = get_model("mockllm/model", custom_outputs=answer)
(log,) = eval("skillmix/skillmix", task_args=arguments, model=model, log_dir="logs", display="none")
print(log.status, log.eval.task, log.results.completed_samples)
"""


def test_inspect_finds_the_task_by_its_entry_point(tmp_path: Path) -> None:
    """In a new process, with the metadata that an installed package has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = "\n".join(f"{name} = {value}" for name, value in project["entry-points"]["inspect_ai"].items())
    metadata = tmp_path / "site-packages" / "skillmix-9.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: skillmix\nVersion: 9\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(f"[inspect_ai]\n{points}\n", encoding="utf-8")
    (metadata.parent / "skillmix").symlink_to(ROOT / "src" / "skillmix")
    path = os.pathsep.join([str(metadata.parent), *filter(None, sys.path)])

    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.stdout.split() == ["success", "skillmix/skillmix", "2"], done.stderr[-2000:]
