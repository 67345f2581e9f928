"""The report step of an experiment."""

from typing import Annotated, Literal

from pydantic import Field

from skillmix.experiment.sections import NamedStep


class ReportStep(NamedStep):
    """Tables, figures and pages of all that came before."""

    stage: Literal["report"]
    rules: Literal["default", "paper", "both"] | None = None
    """The experiment's own if not given; `both` sets them side by side."""
    published: bool = False
    """Whether the paper's own figures stand beside."""
    tokens: Annotated[float, Field(gt=0)] = 2e12
    """Size of the training corpus that the novelty bound is drawn for."""
    runs: tuple[str, ...] = ()
    """Further runs to show together with this one."""
