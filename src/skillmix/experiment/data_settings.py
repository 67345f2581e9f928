"""Settings of data sets that an experiment gives to all its dataset steps, and that each step may change."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from skillmix.experiment.step_base import Section, Share

ShownMode = Literal["refuse", "drop", "count"]
"""What happens to a text that shows a reserved pair or two held-out skills: an error, left out, or only counted."""


RequestChoice = Literal["all", "one"]
"""The skills that the requests of a data set name: all of their text, or one of them, with "any skill" for each other.
"""


class LeakageSettings(Section):
    """What a data set must not contain, besides held-out topics and skills."""

    evaluations: list[str] = []
    """Files with combinations that other evaluations use: `combinations --json`, JSON lines, or experiment files."""
    names: Literal["list", "strict"] = "list"
    """Whether the name of a held-out skill inside a text is listed, or is an error."""
    reserved: Share = 0.2
    """Share of the skill sets with k >= 2 that no data set contains, with any topic."""
    shown: ShownMode = "drop"
    """Texts that show a reserved pair or two held-out skills, requested or not, where the skills have a checker."""


class DataFilters(Section):
    """Which texts with full marks a data set leaves out, and how many it holds back for validation."""

    near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = 0.7
    """Share of common three-word sequences that makes a text a copy of an earlier one; null keeps such texts."""
    exact_duplicates: Literal["drop", "keep"] = "drop"
    """Whether a text with the same words as an earlier one is left out."""
    example_copies: Literal["drop", "keep"] = "drop"
    """Whether a text that repeats an example of its prompt is left out."""
    validation: Share = 0.05
    """Share of the combinations whose texts form the validation part."""

    @model_validator(mode="after")
    def _exact_copies_are_near(self) -> "DataFilters":
        if self.exact_duplicates == "keep" and self.near_duplicates is not None:
            raise ValueError("exact_duplicates: keep needs near_duplicates: null, because an exact copy is a near copy")
        return self


_FILTERS: Final = frozenset(DataFilters.model_fields)


def with_data_settings(document: dict[str, Any]) -> dict[str, Any]:
    """The document of an experiment whose dataset steps state the settings that they take from the experiment.

    A stored experiment is then complete: each step keeps its filters and its leakage rules, whoever set them.
    """
    steps = document.get("steps")
    filters = _stated_filters(document.get("dataset"))
    leakage = document.get("leakage")
    if not isinstance(steps, list):
        return document
    return {**document, "steps": [_with_settings(step, filters, leakage) for step in steps]}


def with_own_places(document: dict[str, Any]) -> dict[str, Any]:
    """The document of an experiment without catalogs and partitions of steps that are those of the experiment."""
    steps = document.get("steps")
    if not isinstance(steps, list):
        return document
    return {**document, "steps": [_with_own_place(step, document) for step in steps]}


def _with_own_place(step: object, document: dict[str, Any]) -> object:
    if not isinstance(step, dict):
        return step
    shared = {"catalog": document.get("catalog", "paper"), "partition": document.get("partition")}
    if step.get("catalog") not in (None, shared["catalog"]):
        shared = {}
    return {key: value for key, value in step.items() if key not in shared or value != shared[key]}


def _stated_filters(section: object) -> dict[str, Any]:
    """The filters that a section states; none if it has faults, which are reported where they are."""
    try:
        DataFilters.model_validate(section)
    except ValidationError:
        return {}
    return {key: value for key, value in section.items() if key in _FILTERS} if isinstance(section, dict) else {}


def _with_settings(step: object, filters: dict[str, Any], leakage: object) -> object:
    if not isinstance(step, dict) or step.get("stage") != "dataset":
        return step
    own = step.get("leakage")
    merged = {"leakage": {**leakage, **own}} if isinstance(own, dict) and isinstance(leakage, dict) else {}
    return {**filters, **step, **merged}
