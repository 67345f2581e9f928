"""How much work the steps of a run are, before they begin."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from skillmix.experiment.dataset_step import DatasetStep
from skillmix.experiment.experiment import EvaluateStep, Experiment, GradeStep, Step
from skillmix.experiment.gpu_hours import DEFAULT_STEPS
from skillmix.experiment.plan import CALL_STEPS, CallStep, written_by
from skillmix.experiment.train_step import TrainStep
from skillmix.models.lineage_files import LINEAGE
from skillmix.models.specs import IN_PROCESS, parse_spec
from skillmix.runs.progress.time_left import Bound, Work
from skillmix.runs.run import TURNS, Run
from skillmix.runs.students import model_folder, settings_for

_REPORT_SHARE = 0.02
"""Part of the bar that a report gets, whose time nobody knows before."""


def planned_work(experiment: Experiment, steps: Sequence[Step], run: Run) -> list[Work]:
    """The steps that take time, as large as the experiment says; steps correct it once they know better."""
    found = []
    for step in steps:
        if isinstance(step, CALL_STEPS):
            found.append(_calls(step, experiment))
        elif isinstance(step, DatasetStep) and step.writer:
            found.append(_data_set(step, experiment))
        elif isinstance(step, TrainStep):
            found.append(_training(step, experiment, run))
        elif step.stage == "report":
            found.append(Work(step.name, "report", total=1))
    planned = sum((work.total or 0) * work.weight for work in found)
    return [replace(work, weight=_REPORT_SHARE * planned) if work.kind == "report" else work for work in found]


def calls_a_conversation(experiment: Experiment, graders: Sequence[str]) -> int:
    """The turns of a student, and the votes of graders that are asked."""
    settings = [experiment.graders[name] for name in graders]
    return TURNS + sum(one.votes for one in settings if one.asked)


def _calls(step: CallStep, experiment: Experiment) -> Work:
    graders = list(getattr(step, "graders", []))
    total = _conversations(step, experiment) * calls_a_conversation(experiment, graders)
    may_stop_early = isinstance(step, EvaluateStep) and step.stop_below is not None
    return Work(step.name, _kind(step, experiment), total, "at most" if may_stop_early else "about")


def _conversations(step: CallStep, experiment: Experiment) -> int:
    """Arithmetic instead of a draw, which takes a while; a catalogue that is too small for it makes it less."""
    if isinstance(step, GradeStep):
        earlier = [s for s in experiment.steps if s.name in step.of and isinstance(s, CALL_STEPS)]
        return sum(_conversations(s, experiment) for s in earlier)
    students = len(set(written_by(step)))
    return students * len(set(step.settings)) * len(set(step.k)) * step.combinations * step.generations


def _data_set(step: DatasetStep, experiment: Experiment) -> Work:
    """As if every text were kept; how many are not, the first wave tells."""
    conversations = sum(step.target_of(k) for k in step.chosen.ks)
    total = conversations * calls_a_conversation(experiment, step.graders)
    return Work(step.name, _kind(step, experiment), total, "at least")


def _kind(step: Step, experiment: Experiment) -> str:
    """Calls of the same models; those in this process count as one, since a tuned model is as fast as its base."""
    asked = [settings_for(experiment, name).model for name in written_by(step)]
    asked += [model for name in getattr(step, "graders", []) if (model := experiment.graders[name].asked)]
    places = {"here" if parse_spec(model).provider in IN_PROCESS else model for model in asked}
    return f"calls: {', '.join(sorted(places))}"


def _training(step: TrainStep, experiment: Experiment, run: Run) -> Work:
    is_over = (model_folder(run, step.name) / LINEAGE).is_file()
    total: int | None = step.steps or DEFAULT_STEPS
    if step.epochs is not None:
        rows = [_rows(name, experiment) for name in step.data]
        known = [count for count in rows if count is not None]
        total = ceil(step.epochs * sum(known) / step.batch) if len(known) == len(rows) else None
    bound: Bound = "at most" if step.patience is not None else "about"
    return Work(step.name, "training", total, bound, weight=step.batch, is_over=is_over)


def _rows(name: str, experiment: Experiment) -> int | None:
    """Conversations of a file, or those that a step is to write; None if only the step itself can tell."""
    if "/" not in name:
        written = [s for s in experiment.steps if s.name == name and isinstance(s, DatasetStep) and s.writer]
        return sum(step.target_of(k) for step in written for k in step.chosen.ks) if written else None
    path = Path(name).expanduser()
    file = path / "train.jsonl" if path.is_dir() else path
    try:
        with file.open("rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return None
