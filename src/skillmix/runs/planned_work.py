"""Estimate the work of each step before a run begins."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path

from skillmix.experiment.experiment import Experiment
from skillmix.experiment.gpu_hours import DEFAULT_STEPS
from skillmix.experiment.sections import Step
from skillmix.experiment.train_step import TrainStep
from skillmix.models.lineage_files import LINEAGE_FILE
from skillmix.models.specs import provider_of
from skillmix.runs.progress.time_left import Bound, Work
from skillmix.runs.run import TURNS, Run
from skillmix.runs.students import model_folder, settings_for

_REPORT_SHARE = 0.02
"""The part of the progress bar that a report gets; its time is not known in advance."""


def planned_work(experiment: Experiment, steps: Sequence[Step], run: Run) -> list[Work]:
    """The steps that take time, with their planned size; a step corrects it once it knows better."""
    works = []
    for step in steps:
        if step.makes_calls:
            works.append(_calls(step, experiment))
        elif isinstance(step, TrainStep):
            works.append(_training(step, experiment, run))
        elif step.stage == "report":
            works.append(Work(step.name, "report", total=1))
    planned = sum((work.total or 0) * work.weight for work in works)
    return [replace(work, weight=_REPORT_SHARE * planned) if work.kind == "report" else work for work in works]


def calls_a_conversation(experiment: Experiment, graders: Sequence[str]) -> int:
    """Calls of one conversation: the student's turns, and the votes of graders that call a model."""
    settings = [experiment.graders[name] for name in graders]
    return TURNS + sum(one.votes for one in settings if one.asked)


def _calls(step: Step, experiment: Experiment) -> Work:
    total = step.conversations(experiment.steps) * calls_a_conversation(experiment, step.grader_names)
    return Work(step.name, _kind(step, experiment), total, step.call_bound)


def _kind(step: Step, experiment: Experiment) -> str:
    """The models that are called; those in this process count as one, since a tuned model is as fast as its base."""
    asked = [settings_for(experiment, name).model for name in step.student_names]
    asked += [model for name in step.grader_names if (model := experiment.graders[name].asked)]
    models = {"here" if provider_of(model).is_in_process else model for model in asked}
    return f"calls: {', '.join(sorted(models))}"


def _training(step: TrainStep, experiment: Experiment, run: Run) -> Work:
    is_over = (model_folder(run, step.name) / LINEAGE_FILE).is_file()
    total: int | None = step.steps or DEFAULT_STEPS
    if step.epochs is not None:
        rows = [_rows(name, experiment) for name in step.data]
        known = [count for count in rows if count is not None]
        total = ceil(step.epochs * sum(known) / step.batch) if len(known) == len(rows) else None
    bound: Bound = "at most" if step.patience is not None else "about"
    return Work(step.name, "training", total, bound, weight=step.batch, is_over=is_over)


def _rows(name: str, experiment: Experiment) -> int | None:
    """Conversations in a file, or those that a step is to write; None if they are not known in advance."""
    if "/" not in name:
        return next((step.planned_texts for step in experiment.steps if step.name == name), None)
    path = Path(name).expanduser()
    file = path / "train.jsonl" if path.is_dir() else path
    try:
        with file.open("rb") as lines:
            return sum(1 for _ in lines)
    except OSError:
        return None
