"""Experiments: the settings of an experiment file, and its checks, which report all faults in one error.

The kinds of step are in steps.py.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from skillmix.calls import extra_json
from skillmix.catalog.combinations import Draw, check_size
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError, faults_error
from skillmix.experiment.document import Matrix, Partitions, Seeds, Variant, checked, expanded, with_changes
from skillmix.experiment.recipes import DataFilters, LeakageSettings, with_own_settings
from skillmix.experiment.step_base import (
    JOINED,
    DrawingStep,
    Name,
    Positive,
    Seconds,
    Section,
    SkillNames,
    Step,
    Temperature,
    TopP,
    student_name,
)
from skillmix.experiment.steps import CODE, AnyStep, DatasetStep, EvaluateStep, GenerateStep, GradeStep, people_faults
from skillmix.experiment.train_step import untrained_faults
from skillmix.files import accepted_if, experiment_file, read_yaml, refused_if, refusing_values, with_nearest
from skillmix.models.request_fields import (
    SEED,
    additions,
    extra_faults,
    system_fault,
    template_option_faults,
    without_seed,
)
from skillmix.models.shapes import shape_of
from skillmix.models.specs import Access, asked_model, batch_fault, check_spec, parse_spec, provider_of, uses_code
from skillmix.prompts.prompt_set import DEFAULT_VARIANT, load_prompts
from skillmix.prompts.rubric import FormatName

_T = TypeVar("_T")
_MOST_LEASES: Final = 64
_MOST_OF_A_NODE: Final = 4096
_KEY_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*_KEY")
_NOT_A_MODELS_KEY: Final = re.compile(r"SECRET|PRIVATE|ACCESS_KEY|SIGNING|ENCRYPTION")


KeyName = Annotated[
    str,
    accepted_if(  # the message omits the value, which may be a key pasted by mistake
        lambda key: _KEY_NAME.fullmatch(key) and not _NOT_A_MODELS_KEY.search(key),
        "this must be the name of an environment variable that holds the model's key: uppercase letters that end in "
        "_KEY, such as VLLM_KEY",
    ),
]


class AskedModel(Section):
    """Settings for reaching a model, and for the parts of a request that are the same in all calls."""

    left_out_if_unset: ClassVar[tuple[str, ...]] = ("proxy", "system", "extra", "batch", "joined")

    key: KeyName | None = None
    """Environment variable that holds the key; not needed for a provider's own URL."""
    insecure: bool = False
    """Allow sending the key over plain HTTP to another machine."""
    proxy: bool = False
    """Use the proxy from the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`)."""
    system: Annotated[str, refused_if(lambda system: filter(None, [system_fault(system)]))] | None = None
    """System prompt of every conversation."""
    extra: Annotated[
        dict[str, JsonValue],
        refused_if(extra_faults),
        AfterValidator(lambda extra: {**extra, SEED: False} if SEED in extra else extra),
    ] = {}
    """Additional fields of the request body, such as `reasoning_effort`. `seed: off` sends no seed."""
    batch: bool | str = False
    """Send calls in the provider's batches, usually at half the price. A name such as `azure` selects the batch API."""
    model: str

    @property
    def asked(self) -> str | None:
        """The model to call; None for a grader that is code alone."""
        return asked_model(self.model)

    @property
    def access(self) -> Access:
        """The network settings for the model, with the key to send."""
        return Access(self.key, self.insecure, self.proxy)

    @property
    def sends_seed(self) -> bool:
        """Whether each call is sent with its own seed."""
        return SEED not in self.extra

    @property
    def extra_json(self) -> str | None:
        """The additional request fields as JSON; None if there are none."""
        return extra_json(without_seed(self.extra))

    @property
    def additions(self) -> str:
        """The system prompt and the additional request fields in words; empty if there are none.

        Models with different additions count as different models, even if their model strings are equal.
        """
        return additions(self.system, self.extra)

    def _check_asked(self) -> None:
        with refusing_values():
            check_spec(self.model)
        asked = self.asked
        if self.access != Access() and not (asked and provider_of(asked).is_served):
            raise ValueError("key, insecure and proxy need a model that is called over the network; remove them")
        if asked is None:
            if self.batch:
                raise ValueError("rules: is code and has no batches; remove batch")
            if self.system is not None or self.extra:
                raise ValueError("rules: is code and has no system prompt or extra fields; remove system and extra")
            return
        faults = [batch_fault(parse_spec(asked), self.batch)]
        if self.system is not None and shape_of(asked) is not None:
            faults.append(f"system: {asked} has no system role; remove system")
        if provider_of(asked).is_engine:
            faults += [f"extra: {fault}" for fault in template_option_faults(self.extra)]
        if any(faults):
            raise ValueError("; ".join(filter(None, faults)))


class StudentSettings(AskedModel):
    """A model that generates texts, with its prompts and sampling parameters."""

    model: str
    """Model string, such as `openai:gpt-4o`."""
    prompts: str | None = None
    """Prompt set (default: the experiment's)."""
    temperature: Temperature = 0.7
    max_tokens: Positive = 512
    """Maximum tokens per reply."""
    top_p: TopP = None
    concurrency: Positive | None = None
    """Simultaneous calls (default: 64 for an endpoint; for a local model, as many as fit into memory)."""
    timeout: Seconds = 600
    tuned_from: Name | None = None
    """The student that this student was fine-tuned from, if the model has no `skillmix.json`."""
    trained_on: Annotated[
        list[str],
        BeforeValidator(
            lambda value: [value] if isinstance(value, str) else value, json_schema_input_type=str | list[str]
        ),
    ] = []
    """Folders of the data sets that the student was fine-tuned on, or the `skillmix.json` files in these folders."""
    lineage: str | None = None
    """Folder with the `skillmix.json` of the student's model, or the path of this file."""
    joined: bool = False
    """Let the model write one text per skill, and join these texts by code."""

    @model_validator(mode="after")
    def _consistent(self) -> "StudentSettings":
        if self.lineage is not None and (self.tuned_from is not None or self.trained_on):
            raise ValueError(
                "lineage already records the base and the data: remove lineage, or tuned_from and trained_on"
            )
        if self.tuned_from is not None and not self.trained_on:
            raise ValueError("tuned_from needs trained_on: list the data sets that the student was tuned on")
        if uses_code(self.model):
            raise ValueError("rules: is a grader and writes no texts; give a model")
        if self.joined and self.batch:
            raise ValueError("joined students have no batches; remove batch")
        self._check_asked()
        return self

    @property
    def declares_lineage(self) -> bool:
        """Whether the experiment declares the student's base or training data."""
        return self.lineage is not None or bool(self.trained_on)

    @property
    def asked(self) -> str:
        """The model to call."""
        return self.model


class GraderSettings(AskedModel):
    """A grader: a model, code (`rules:`), or both."""

    model: str
    """Model string: `rules:` for code alone, `rules:MODEL` for code and a model for skills without a checker."""
    rounds: Positive | None = None
    """Independent gradings per text, an odd number (default: 3, or 1 for `rules:`)."""
    prompts: str = DEFAULT_VARIANT
    """Grader prompt: NAME selects the file grade-NAME.txt of the prompt set."""
    temperature: Temperature = 0.7
    max_tokens: Positive = 1024
    """Maximum tokens per reply."""
    top_p: TopP = None
    concurrency: Positive | None = None
    """Simultaneous calls (default: as for students)."""
    timeout: Seconds = 600
    joined: ClassVar[bool] = False
    attempts: Positive = 3
    """Maximum calls per grading if replies cannot be parsed."""

    @model_validator(mode="after")
    def _odd_and_varied_votes(self) -> "GraderSettings":
        self._check_asked()
        if self.votes % 2 == 0:
            raise ValueError(f"rounds must be odd, not {self.votes}")
        if self.votes > 1 and self.asked is None:
            raise ValueError("rules: always gives the same grade; set rounds: 1")
        if self.votes > 1 and self.temperature == 0:
            raise ValueError("rounds at temperature 0 all give the same grade; raise temperature or set rounds: 1")
        return self

    @property
    def votes(self) -> int:
        """The value of `rounds`, or its default."""
        return self.rounds or (1 if self.asked is None else 3)

    @property
    def has_code(self) -> bool:
        """Whether code grades the skills that have a checker."""
        return uses_code(self.model)


class BudgetSettings(Section):
    """Limits on the cost and the calls of a run over all its invocations."""

    max_usd: Annotated[float, Field(ge=0)] | None = None
    """Maximum cost in US dollars, which requires a known price for every model."""
    max_calls: Annotated[int, Field(ge=0)] | None = None
    """Maximum calls."""


OfNode = Annotated[
    float,
    Field(gt=0, le=_MOST_OF_A_NODE),
    accepted_if(
        lambda amount: amount <= 1 or amount == int(amount),
        "a number above 1 must be an integer, because Ray can split only a single GPU",
    ),
]


class WorkerSettings(Section):
    """Settings of workers on a cluster."""

    gpus: OfNode | None = None
    """GPUs per worker (default: as many as the models of a step need). With 0.5, two workers share a GPU."""
    cpus: OfNode | None = None
    """CPUs per worker. Each node runs as many workers as fit (default: one worker per node)."""
    leases: Annotated[int, Field(ge=1, le=_MOST_LEASES)] = 2
    """Ignored; accepted because older files have this key."""
    writers: Annotated[int, Field(ge=1)] = 1
    """Ignored; accepted because older files have this key."""


TrackerName = Literal["tensorboard", "wandb", "mlflow"]


class AnswerSettings(Section):
    """Settings for extracting a student's answer from its reply."""

    missing_marker: Literal["whole", "zero"] = "whole"
    """A reply without 'Answer:' is graded as a whole (`whole`), or earns no points (`zero`)."""


class Experiment(Section):
    """All settings that determine a run."""

    left_out_if_unset: ClassVar[tuple[str, ...]] = ("format", "track", "variants")

    name: Name
    """Name of the run's folder in `runs/`."""
    seed: int = 0
    """Seed of the draws and the calls."""
    catalog: str = "paper"
    """A shipped catalog or a folder."""
    partition: str | None = None
    """Split of the catalog into train and held-out skills (default: the catalog's own)."""
    prompts: str = "standard"
    """A shipped prompt set or a folder."""
    exclude: SkillNames = []
    """Skills and exclude lists (`file:PATH`) that are never drawn."""
    format: FormatName | None = None
    """Output format of all texts; only texts in this format earn the point for length."""
    rules: Literal["default", "paper"] = "default"
    """Scoring rules: skillmix's (`default`) or the paper's (`paper`)."""
    answer: AnswerSettings = AnswerSettings()
    students: dict[Name, StudentSettings] = {}
    """Models that generate texts, by name."""
    graders: dict[Name, GraderSettings] = {}
    """Graders (models, code or both), by name."""
    budget: BudgetSettings = BudgetSettings()
    leakage: LeakageSettings = LeakageSettings()
    dataset: DataFilters = DataFilters()
    """Filters of all dataset steps; a step may override them."""
    # Excluded from stored experiments and their hashes, because results do not depend on which machine makes a call.
    workers: Annotated[WorkerSettings, Field(exclude=True)] = WorkerSettings()
    track: list[TrackerName] = []
    """Trackers that receive training curves and scores."""
    seeds: Annotated[Seeds, Field(exclude=True)] = []
    """Training seeds; train steps, and the steps that use their models, are repeated for each seed."""
    partitions: Annotated[Partitions, Field(exclude=True)] = []
    """Partitions instead of `partition`; the steps that depend on the partition are repeated for each one."""
    matrix: Annotated[Matrix, Field(exclude=True)] = {}
    """Lists of values by name; steps and students with `{NAME}` in a setting are repeated for each value."""
    variants: dict[Name, Variant] = {}
    """In a stored experiment, the values behind the suffix of each repeated step or student."""
    steps: list[AnyStep]
    """The steps of the run, in order."""

    @model_validator(mode="before")
    @classmethod
    def _complete_dataset_steps(cls, document: object) -> object:
        return with_own_settings(document) if isinstance(document, dict) else document

    @property
    def other_catalogs(self) -> tuple[str, ...]:
        """The catalogs that individual steps set instead of the experiment's catalog."""
        return tuple(dict.fromkeys(s.catalog for s in self.steps if isinstance(s, DrawingStep) and s.catalog))

    @property
    def reserved(self) -> float:
        """The share of skill sets that all data sets of the experiment exclude."""
        own = [step.leakage.reserved for step in self.steps if isinstance(step, DatasetStep) and step.leakage]
        return min([self.leakage.reserved, *own])


def load_experiment(path: Path, *, changes: Sequence[str] = (), checks_outside: bool = True) -> Experiment:
    """Read and check an experiment file, or a shipped experiment by name, after `--set` changes such as `a.b=c`."""
    document = with_changes(read_yaml(experiment_file(path)), changes)
    return experiment_of(document, source=str(path), checks_outside=checks_outside)


def experiment_of(document: object, *, source: str, checks_outside: bool = False) -> Experiment:
    """Check an experiment, and report all faults with their places in one error.

    `checks_outside` also checks catalogs, draws and prompt sets, which may have changed since an experiment was stored.
    """
    expansion = expanded(document)
    for one in (expansion.first, expansion.whole):  # the first has the names of the file, so messages can locate faults
        experiment, form_faults, hint = checked(one, Experiment)
        faults = [*expansion.faults, *form_faults]
        if experiment is not None:
            faults += _reference_faults(experiment, one)
            faults += _outside_faults(experiment, has_others=bool(faults)) if checks_outside else []
        if checks_outside and experiment is not None and not (experiment.steps or faults):
            faults.append("steps: the list is empty; add a step")
        if faults:
            raise faults_error(
                source, faults, hint=hint or "Correct these values; `skillmix schema` describes all keys."
            )
        if expansion.whole is expansion.first:
            break
    assert experiment is not None  # a document without faults is valid
    return experiment


def _outside_faults(experiment: Experiment, *, has_others: bool) -> list[str]:
    """Find unknown catalogs, partitions, groups, skills and prompt sets, and in a faulty file also impossible draws.

    In a file without other faults, impossible draws are left to the plan, which also finds what this machine lacks.
    """
    faults: list[str] = []
    draws: list[tuple[str, Draw, int]] = []

    def used(at: str, use: Callable[[], _T]) -> _T | None:
        try:
            return use()
        except UserError as error:
            faults.append(f"{at}: {error.message} {error.hint or ''}".rstrip())
        except (OSError, ValueError) as error:  # the name is too long for a path, or contains a null character
            faults.append(f"{at}: this cannot be a folder: {getattr(error, 'strerror', None) or error}")
        return None

    shared = used("catalog", partial(load_catalog, experiment.catalog))
    shared_split = used("partition", partial(shared.partition, experiment.partition)) if shared else None
    drawing = {f"steps.{step.name}.": step for step in experiment.steps if isinstance(step, DrawingStep)}
    for at, place in {"": experiment, **drawing}.items():
        before, catalog, split = len(faults), shared, shared_split
        if at and place.catalog:
            catalog = used(f"{at}catalog", partial(load_catalog, place.catalog))
        if at and (place.catalog or place.partition):
            split = used(f"{at}partition", partial(catalog.partition, place.partition)) if catalog else None
        if catalog:
            ks = enumerate(getattr(place, "k", ()), start=1)
            faults += [f"{at}k.{number}: 0 is below 1" for number, k in ks if k == 0 and not catalog.controls]
            for skill in getattr(place, "exclude", ()):
                used(f"{at}exclude", partial(catalog.excluded, [skill]))
        if split:
            for number, setting in enumerate(getattr(place, "settings", ()), start=1):
                used(f"{at}settings.{number}", partial(split.side, setting))
        pool = getattr(place, "pool", None)
        if split and pool is not None and pool not in split.groups:
            known = ", ".join(split.groups) or "no further groups"
            faults.append(with_nearest(f"{at}pool: {split.name} has {known}, but not {pool!r}", pool, split.groups))
        if catalog and split and isinstance(place, DrawingStep) and len(faults) == before:
            excluded = () if place.catalog else experiment.exclude
            cells = [cell for cell in place.undrawn_cells(experiment.steps) if cell.purpose == "evaluation" and cell.k]
            for cell in {(cell.setting, cell.k): cell for cell in cells}.values():
                with suppress(UserError):  # the exclude list has a fault, which is reported elsewhere
                    side = catalog.pool(cell.setting, partition=split.name, exclude=(*excluded, *cell.exclude))
                    draw = Draw(side, cell.setting, cell.k, experiment.seed)
                    draws.append((f"steps.{place.name}", draw, cell.count or 0))
    if experiment.other_catalogs and not faults:
        used("catalog", partial(load_catalog, experiment.catalog, *experiment.other_catalogs))
    prompts = {f"students.{name}.prompts": s.prompts for name, s in experiment.students.items() if s.prompts}
    for at, name in {"prompts": experiment.prompts, **prompts}.items():
        used(at, partial(load_prompts, name))
    for at, draw, count in draws if faults or has_others else ():
        used(at, partial(check_size, draw, count))
    return faults


def _reference_faults(experiment: Experiment, document: object) -> Iterator[str]:
    """Find invalid step names, and references to unknown students, graders and steps.

    Names in the document count as known even if their sections were left out because of faults.
    """
    sections = document if isinstance(document, dict) else {}
    students, graders = (
        {str(name) for name in section} if isinstance(section := sections.get(kind), dict) else set[str]()
        for kind in ("students", "graders")
    )
    listed = sections.get("steps")
    steps = {str(step.get("name")) for step in (listed if isinstance(listed, list) else ()) if isinstance(step, dict)}
    left_out = steps.difference(step.name for step in experiment.steps)
    earlier: dict[str, Step] = {}

    def unknown(kind: str, name: str, known: Iterable[str]) -> str:
        return with_nearest(f"there is no {kind} {name!r}", name, known)

    def step_faults(name: str, stages: Sequence[str]) -> list[str]:
        is_known = earlier[name].stage in stages if name in earlier else name in left_out
        fault = f"there is no earlier {' or '.join(stages)} step {name!r}"
        return [] if is_known else [with_nearest(fault, name, earlier)]

    for name, settings in experiment.students.items():
        chain, base = [name], settings.tuned_from
        while base is not None and base not in chain and base in experiment.students:
            chain.append(base)
            base = experiment.students[base].tuned_from
        if base is not None and base in chain:
            yield f"students.{name}.tuned_from: {base!r} is tuned from itself: {' from '.join([*chain, base])}"
        elif base is not None and len(chain) == 1:
            yield f"students.{name}.tuned_from: {unknown('student', base, experiment.students)}"
    has_code = any(settings.asked is None for settings in experiment.graders.values())
    truths = [*sorted(graders), *([CODE] if has_code else [])]
    models = {name: settings.model for name, settings in experiment.students.items()}
    for step in experiment.steps:
        own = ["an earlier step has the same name; rename one"] if step.name in earlier else []
        if step.name == "journal" or (step.name == "tracking" and experiment.track):
            own.append("the name is reserved for a folder of the run; rename the step")
        for reference in step.model_references:
            is_joined = reference.startswith(JOINED)
            if is_joined or reference.startswith("step:"):
                name = reference.removeprefix(JOINED).removeprefix("step:")
                own += step_faults(name, ["train"])
                if name in experiment.students:
                    own.append(f"{reference} would have the same name as the student {name!r}; rename one")
            elif reference not in students:
                own.append(unknown("student", reference, [*students, *(f"step:{n}" for n in earlier)]))
            if is_joined and student_name(reference) in students | steps:
                own.append(f"{reference} would be called {student_name(reference)}, like another student or step")
            joins = is_joined or (reference in experiment.students and experiment.students[reference].joined)
            if joins and not isinstance(step, GenerateStep | EvaluateStep):
                own.append(f"{reference} has joined texts, which only generate and evaluate steps can use")
        if isinstance(step, EvaluateStep) and step.sets == "reserved" and not experiment.reserved:
            own.append("sets: reserved needs leakage.reserved above 0 in the experiment and in every dataset step")
        if isinstance(step, GradeStep):
            own += [f"the steps in `of` have no texts with {value}" for value in step.unmatched(list(earlier.values()))]
        own += [*untrained_faults(step, models), *people_faults(step, experiment.steps, models, truths)]
        own += [unknown("grader", name, graders) for name in step.grader_names if name not in graders]
        for name, stages in step.inputs:
            own += step_faults(name, stages)
        yield from (f"steps.{step.name}: {fault}" for fault in own)
        earlier.setdefault(step.name, step)
