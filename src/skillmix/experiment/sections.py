"""What every part of an experiment file is made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[._-]*[a-z0-9][a-z0-9._-]*$")]
ModelRef = Annotated[str, StringConstraints(min_length=1)]
"""A name of the experiment, or `step:NAME` for what an earlier step made."""
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1, le=10**9)]


class Section(BaseModel):
    """Frozen, without room for keys that nobody knows, and without numbers that are none."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NamedStep(Section):
    """One of an experiment's steps."""

    name: Name


def student_name(reference: str) -> str:
    """The student that a reference means: a train step's model goes by the step's name.

    >>> student_name("step:m1"), student_name("base")
    ('m1', 'base')
    """
    return reference.removeprefix("step:")
