"""Small direct runs, and a model for Inspect that gives the replies of such a run again.

`python -m tests.exchange.replay` writes the logs in tests/exchange/logs/ again; it needs inspect_ai. Each log is the
log of an evaluation by Inspect's own runner with the model mockllm, which gave the replies of a direct run. Inspect
0.3.285 wrote the present ones.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from skillmix.api import run as run_experiment
from skillmix.calls import GradeKey, Outcome, Reply, Subject
from skillmix.models.scripted import Chance, code
from skillmix.runs.run import Run
from tests.models.reading_model import ReadingModel
from tests.runs.databases import messages

LOGS = Path(__file__).parent / "logs"
CASES: Mapping[str, dict[str, Any]] = {
    "rules": {"catalog": "verifiable", "k": 2, "combinations": 4, "generations": 2, "grader": "rules"},
    "model": {"catalog": "paper", "k": 2, "combinations": 3, "generations": 2, "grader": "model", "rounds": 3},
    "both": {
        "catalog": "verifiable",
        "k": 3,
        "setting": "held-out",
        "combinations": 6,
        "generations": 1,
        "grader": "both",
        "rounds": 3,
    },
}
"""The arguments of the task in each log; `rules` and `both` are .eval files, `model` is a .json file."""
_STUDENT = "scripted:student?skill=0.7&empty=0.05&marker=0.9&refusal=0.1"
_GRADERS = {
    "rules": {"model": "rules:"},
    "model": {"model": "scripted:grader?noise=0.1&unreadable=0.4", "rounds": 3},
    "both": {"model": "rules:scripted:grader?noise=0.1&unreadable=0.3", "rounds": 3},
}


_TEMPLATES: dict[str, str] = json.loads((LOGS / "templates.json").read_text(encoding="utf-8"))
"""What the template student wrote for each combination when the logs were made, so that a better one changes no log."""


class Writer(ReadingModel):
    """A scripted model whose texts about checkable skills often show them, and differ from each other."""

    def _write(self, task: Subject, chance: Chance) -> str:
        written = _TEMPLATES.get("; ".join([*task.combination.skills, task.combination.topic]))
        if written is not None and chance.falls("template", 0.6):
            return f"Answer: {written}\n\nExplanation: it is a template."
        return super()._write(task, chance).replace("Scripted words", f"Scripted words w{chance._number('word')}")


class TopicWriter(Writer):
    """Adds the word by which the scripted grader finds the topic."""

    def _write(self, task: Subject, chance: Chance) -> str:
        text = super()._write(task, chance)
        word = f" {code(task.combination.topic)}"
        return text if word in text else text.replace("\n", f"{word}\n", 1)


def direct_run(case: str, folder: Path) -> Run:
    """A run of `skillmix run` with the settings of a case."""
    own = CASES[case]
    step = {
        "name": "e",
        "stage": "evaluate",
        "students": ["s"],
        "graders": ["g"],
        "settings": [own.get("setting", "all")],
        "k": [own["k"]],
        "combinations": own["combinations"],
        "generations": own["generations"],
    }
    document = {
        "name": case,
        "catalog": own["catalog"],
        "students": {"s": {"model": _STUDENT}},
        "graders": {"g": _GRADERS[case]},
        "steps": [step],
    }
    place = patch("skillmix.runs.run.Path", lambda name: folder if name == "runs" else Path(name))
    writer = TopicWriter if case == "both" else Writer
    with patch("skillmix.runs.calling.open_model", lambda spec, _: writer(spec)), place:
        return run_experiment(document)._run


def rows(run: Run) -> list[dict[str, object]]:
    """The scores of a run without the names that an import cannot know."""
    from skillmix.scores.scoring import run_scores

    left_out = ("run", "student", "grader")
    return [{k: v for k, v in score.json_row().items() if k not in left_out} for score in run_scores(run)]


class Replay:
    """Answers Inspect's model mockllm with the replies of a run."""

    def __init__(self, run: Run) -> None:
        replies: dict[tuple[tuple[str, str], ...], list[tuple[int, Outcome]]] = defaultdict(list)
        with run.read() as journal:
            stored = messages(journal)
            for call in (*journal.calls("generate"), *journal.calls("grade")):
                asked = tuple((stored[address].role, stored[address].content) for address in call.messages)
                assert call.outcome is not None
                replies[asked].append((call.key.attempt if isinstance(call.key, GradeKey) else 0, call.outcome))
        # First attempts come before all second ones, as in an evaluation whose rounds begin together.
        self._replies = {asked: sorted(own, key=lambda pair: pair[0]) for asked, own in replies.items()}

    def __call__(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        from inspect_ai.model import ModelOutput, ModelUsage

        asked = tuple((message.role, message.text) for message in input)
        _, outcome = self._replies[asked].pop(0)
        text, reason = (outcome.text, "stop") if isinstance(outcome, Reply) else ("", "content_filter")
        output = ModelOutput.from_content("mockllm/model", text, stop_reason=reason)
        output.usage = ModelUsage(input_tokens=11, output_tokens=7, total_tokens=18)
        return output

    @property
    def left(self) -> int:
        """Replies that nobody asked for."""
        return sum(map(len, self._replies.values()))


def evaluated(case: str, run: Run, folder: Path) -> tuple[Any, Replay]:
    """The log of Inspect for a case, with the replies of a direct run."""
    from inspect_ai import eval
    from inspect_ai.model import get_model

    from skillmix.exchange.inspect_task import skillmix

    replay = Replay(run)
    model = get_model("mockllm/model", custom_outputs=replay, memoize=False)
    roles = {} if case == "rules" else {"grader": get_model("mockllm/judge", custom_outputs=replay, memoize=False)}
    log_format = "json" if case == "model" else "eval"
    (log,) = eval(
        skillmix(**CASES[case]),
        model=model,
        model_roles=roles,
        log_dir=str(folder),
        log_format=log_format,
        display="none",
    )
    return log, replay


def main() -> None:
    """Write the logs again."""
    from inspect_ai.log import write_eval_log

    for case in CASES:
        with TemporaryDirectory() as folder, chdir(folder):  # a log names the repository of the current folder
            log, replay = evaluated(case, direct_run(case, Path(folder)), Path(folder))
            assert log.status == "success" and not replay.left, log.error
            written = Path(log.location)
            for sample in log.samples if written.suffix == ".json" else ():
                sample.events, sample.attachments = [], {}  # three quarters of the file, and the import reads none
            write_eval_log(log, str(LOGS / f"{case}{written.suffix}"))


if __name__ == "__main__":
    main()
