"""The table of step kinds."""

from typing import get_args

import pytest

from skillmix.experiment.step_base import Step
from skillmix.experiment.steps import AnyStep
from skillmix.steps.kinds import kind_of
from skillmix.steps.step_kind import StepKind

CLASSES: tuple[type[Step], ...] = get_args(get_args(AnyStep)[0])


@pytest.mark.parametrize("step_class", CLASSES, ids=lambda step_class: step_class.__name__)
def test_every_kind_of_step_has_code_that_runs_it(step_class: type[Step]) -> None:
    (stage,) = get_args(step_class.model_fields["stage"].annotation)

    kind = kind_of(step_class.model_construct(name="x", stage=stage))

    assert type(kind).run is not StepKind.run
