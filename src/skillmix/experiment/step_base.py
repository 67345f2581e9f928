"""Base classes of an experiment file: `Section` for its parts, and `Step` for the entries of `steps`.

Each kind of step is a subclass of `Step` and overrides the properties that apply to it, so that other code need not
know the class of a step.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
)
from pydantic.functional_serializers import model_serializer
from pydantic_core.core_schema import CoreSchema, LiteralSchema, SerializerFunctionWrapHandler, literal_schema

from skillmix.calls import LONGEST_NAME
from skillmix.catalog.catalog import Setting
from skillmix.catalog.combinations import Purpose
from skillmix.errors import errors_of
from skillmix.files import LIST, accepted_if, with_listed_skills
from skillmix.hashing import short_id

_T = TypeVar("_T")


def _with_files_read(names: list[str]) -> list[str]:
    if not any(name.startswith(LIST) for name in names):
        return names
    errors = errors_of(partial(with_listed_skills, [name]) for name in names)
    if errors:
        raise ValueError("; ".join(fault for error in errors for fault in error.faults))
    return list(dict.fromkeys(skill for name in names for skill in with_listed_skills([name])))


Name = Annotated[str, StringConstraints(pattern=r"^[._-]*[a-z0-9][a-z0-9._-]*$", max_length=LONGEST_NAME)]
ModelRef = Annotated[str, StringConstraints(min_length=1)]
"""A student of the experiment, `step:NAME` for the model of an earlier train step, or `joined:step:NAME`."""
JOINED: Final = "joined:step:"
"""The prefix of a train step whose model writes one text per skill, which code joins."""
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
SkillCount = Annotated[int, Field(ge=0, le=10**9)]
Temperature = Annotated[float, Field(ge=0, description="Sampling temperature; 0 takes the most likely token.")]
TopP = Annotated[
    Share | None, Field(description="Sample from the most likely tokens with this total probability; unset by default.")
]
Seconds = Annotated[
    float, Field(gt=0, le=10**9, description="Timeout of a call in seconds, after which it is retried.")
]
FilledList = Annotated[
    list[_T], accepted_if(bool, "the list is empty, so the step would do nothing; give at least one value")
]
"""A list with at least one value."""
SkillNames = Annotated[list[str], AfterValidator(_with_files_read)]
"""Skills and exclude lists. Each `file:PATH` is replaced by the skills in the file, so draws depend on its content."""


def _with_text_keys(value: object) -> object:
    """Convert the keys of nested mappings to text, as in a stored experiment."""
    return {str(key): _with_text_keys(own) for key, own in value.items()} if isinstance(value, dict) else value


def _form(counts: object) -> str:
    return "table" if isinstance(counts, dict) else "number"


_Count = Annotated[Positive | Literal["all"], Tag("number")]
_Inner = Annotated[_Count | Annotated[dict[str, Positive | Literal["all"]], Tag("table")], Discriminator(_form)]
_Table = Annotated[dict[str, _Inner], Tag("table")]
Counts = Annotated[_Count | _Table, Discriminator(_form), BeforeValidator(_with_text_keys)]
"""A number, `all`, or a mapping with such values for each k or setting: `{1: 50, 2: {train: all, held-out: 10}}`."""


def count_for(counts: object, setting: str, k: int) -> object:
    """Return the number or `all` for a setting and k; None if the counts have no such entry.

    >>> count_for({"train": {"1": 20, "2": "all"}, "2": 5}, "train", 2), count_for({"1": 5}, "all", 2)
    ('all', None)
    """
    while isinstance(counts, dict):
        counts = next((counts[key] for key in (setting, str(k)) if key in counts), None)
    return counts


def keys_in(counts: object) -> list[str]:
    """Return all keys of counts, including nested ones."""
    return [key for name, own in counts.items() for key in (name, *keys_in(own))] if isinstance(counts, dict) else []


class Section(BaseModel):
    """A frozen part of an experiment file, which rejects unknown keys and infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    left_out_if_unset: ClassVar[tuple[str, ...]] = ()
    """Keys from newer versions, omitted if they have their default, so that stored experiments keep their form."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the docstring below each field to the schema; reading docstrings at every start would take time."""
        schema = handler(core_schema)
        documented: dict[str, str | None] = {}
        for section in reversed([one for one in cls.__mro__ if one is not Section and issubclass(one, Section)]):
            (definition,) = ast.parse(inspect.getsource(section)).body
            for field, below in pairwise([*getattr(definition, "body", ()), None]):
                if isinstance(field, ast.AnnAssign):
                    is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                    documented[ast.unparse(field.target)] = inspect.cleandoc(below.value.value) if is_text else None
        for name, form in handler.resolve_ref_schema(schema)["properties"].items():
            if documented.get(name):
                form.setdefault("description", documented[name])
        return schema

    @model_serializer(mode="wrap")
    def _without_unset(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        unset = {name for name in self.left_out_if_unset if name in document and document[name] == fields[name].default}
        return {name: value for name, value in document.items() if name not in unset}


class OneOf:
    """Restricts a string to names that are known only at run time: `Annotated[str, OneOf(names)]`."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> LiteralSchema:
        """Return the schema that a `Literal` with these names would have."""
        return literal_schema(self._names)


SetChoice = Literal["all", "reserved"]
"""The skill sets of a draw: all, or only those that every data set excludes."""


def setting_label(
    setting: str,
    sets: SetChoice,
    exclude: Sequence[str] = (),
    *,
    catalog: str | None = None,
    partition: str | None = None,
) -> str:
    """Return the name of a setting in tables, which distinguishes draws of different skill sets, skills and catalogs.

    >>> setting_label("train", "all"), setting_label("train", "reserved")
    ('train', 'train-reserved')
    >>> setting_label("all", "all", ["common"]), setting_label("all", "all", ["red herring", "common"])
    ('all-without-common', 'all-without-common-and-red-herring')
    >>> setting_label("train", "all", catalog="figures", partition="nested:2")
    'train in figures under nested:2'
    """
    label = setting if sets == "all" else f"{setting}-{sets}"
    label = f"{label}-without-{_excluded_label(exclude)}" if exclude else label
    return label + (f" in {catalog}" if catalog else "") + (f" under {partition}" if partition else "")


class LabelParts(NamedTuple):
    """The name, catalog and partition of a setting, parsed from its label."""

    setting: str
    catalog: str | None
    """The step's own catalog; None for the experiment's."""
    partition: str | None


def label_parts(label: str) -> LabelParts:
    """Split the label of a setting, whose name has no blanks, into its parts.

    >>> label_parts("held-out under nested:2"), label_parts("all").partition
    (LabelParts(setting='held-out', catalog=None, partition='nested:2'), None)
    """
    place, _, partition = label.partition(" under ")
    setting, _, catalog = place.partition(" in ")
    return LabelParts(setting, catalog or None, partition or None)


_LONGEST_EXCLUDED_LABEL: Final = 40
_PLAIN_NAME = re.compile(r"[a-z0-9]++(?: [a-z0-9]++)*+")


def _excluded_label(exclude: Sequence[str]) -> str:
    """Shorten excluded names for labels and file names; a number and a hash replace a long list."""
    names = sorted({name.casefold() for name in exclude})
    joined = "-and-".join(name.replace(" ", "-") for name in names)
    is_plain = all(_PLAIN_NAME.fullmatch(name) for name in names)
    if is_plain and len(joined) <= _LONGEST_EXCLUDED_LABEL:
        return joined
    return f"{len(names)}-skills-{short_id('exclude', names)}"


class StepInput(NamedTuple):
    """An earlier step whose output a step needs."""

    step: str
    stages: tuple[str, ...]
    """The stages that produce this output."""


@dataclass(frozen=True, kw_only=True)
class UndrawnCell:
    """One student, setting and k of a step, before its combinations are drawn."""

    source: str
    """The step that generates the texts: this step, or the step that it grades."""
    student: str
    graders: tuple[str, ...]
    setting: Setting
    k: int
    generations: int
    count: int | None = None
    """Number of combinations to draw; None for all."""
    is_ladder: bool = False
    sets: SetChoice = "all"
    purpose: Purpose = "evaluation"
    """Whether the combinations are drawn for evaluation or for training data."""
    exclude: tuple[str, ...] = ()
    """Skills and exclude lists that the step omits, besides the experiment's."""
    catalog: str | None = None
    partition: str | None = None

    @property
    def label(self) -> str:
        """Return the name of the setting in tables."""
        return setting_label(self.setting, self.sets, self.exclude, catalog=self.catalog, partition=self.partition)


class Step(Section):
    """One step of an experiment."""

    left_out_if_unset: ClassVar[tuple[str, ...]] = ("catalog", "partition", "pool", "requests")

    name: Name
    """Name of the step and of its folder in the run's folder."""
    stage: str
    """Kind of the step."""

    reads_whole_run: ClassVar[bool] = False
    """Whether the step runs after all steps that produce texts or models."""
    trains_model: ClassVar[bool] = False
    """Whether later steps may use the step's model as `step:NAME`."""

    @property
    def model_references(self) -> tuple[str, ...]:
        """Return the students and `step:NAME` models that the step calls or trains."""
        return ()

    @property
    def student_names(self) -> tuple[str, ...]:
        """Return the students that generate texts in this step."""
        return () if self.trains_model else tuple(map(student_name, self.model_references))

    @property
    def grader_names(self) -> tuple[str, ...]:
        """Return the graders that grade texts in this step."""
        return tuple(getattr(self, "graders", ()))

    @property
    def inputs(self) -> tuple[StepInput, ...]:
        """Return the earlier steps whose output the step needs."""
        return ()

    @property
    def may_stop_early(self) -> bool:
        """Whether low scores at a small k can cancel larger k."""
        return getattr(self, "stop_below", None) is not None

    @property
    def planned_texts(self) -> int | None:
        """Return the number of texts that the step adds to a data set; None if there is none or it is unknown."""
        return None

    @property
    def call_bound(self) -> Literal["at least", "about", "at most"]:
        """Whether the planned calls are a lower bound, an estimate or an upper bound.

        A data set replaces every text without full marks, and an early stop saves calls.
        """
        return "at least" if self.stage == "dataset" else "at most" if self.may_stop_early else "about"

    def undrawn_cells(self, steps: Sequence["Step"]) -> Iterator[UndrawnCell]:
        """Yield the cells of the score table that the step fills; `steps` are all steps of the experiment."""
        yield from ()


class DrawingStep(Step):
    """A step that draws combinations, optionally from its own catalog and partition."""

    catalog: str | None = None
    """Catalog to draw from (default: the experiment's)."""
    partition: str | None = None
    """Partition to draw from (default: the experiment's, or the default partition of the step's own catalog)."""


def student_name(reference: str) -> str:
    """Return the name of the student that a reference refers to; a trained model has the name of its train step.

    >>> student_name("step:m1"), student_name("base"), student_name("joined:step:m1")
    ('m1', 'base', 'm1-joined')
    """
    if reference.startswith(JOINED):
        return f"{reference.removeprefix(JOINED)}-joined"
    return reference.removeprefix("step:")
