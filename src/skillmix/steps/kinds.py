"""The table of step kinds."""

from collections.abc import Mapping
from typing import Any, Final

from skillmix.experiment.step_base import Step
from skillmix.steps.calls import EvaluateKind, GenerateKind, GradeKind
from skillmix.steps.dataset import DatasetKind
from skillmix.steps.last_steps import AnnotateKind, GradersKind, ReportKind
from skillmix.steps.step_kind import StepKind
from skillmix.steps.train import TrainKind

_KINDS: Final[Mapping[str, StepKind[Any]]] = {
    "evaluate": EvaluateKind(),
    "generate": GenerateKind(),
    "grade": GradeKind(),
    "dataset": DatasetKind(),
    "train": TrainKind(),
    "annotate": AnnotateKind(),
    "graders": GradersKind(),
    "report": ReportKind(),
}
"""By `stage`, the key of a step that names its kind."""


def kind_of(step: Step) -> StepKind[Any]:
    """The code for steps of this kind."""
    return _KINDS[step.stage]
