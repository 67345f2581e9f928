"""A run: its folder, its experiment, and its journal.

`open_run` finds a run that exists, `new_run` names one that may not exist yet. A `Run` is opened once for a command and
handed on; it reads and checks its experiment once. An imported run has an experiment, too: one without steps, students
and graders, so that readers need not ask which kind of run they have.
"""

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from skillmix import __version__
from skillmix.calls import checked_name, is_human
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, GraderSettings, experiment_of
from skillmix.experiment.plan import PlannedCell, cells_of, uncovered
from skillmix.files import write_whole
from skillmix.grading.answers import RULES, Rules
from skillmix.prompts.prompt_set import PromptSet, load_prompts
from skillmix.prompts.rubric import Phrases, stored_phrases
from skillmix.render import name_hint
from skillmix.runs.database import RUN_FILE, connect, telling_what_broke
from skillmix.runs.journal import JournalReader, JournalWriter
from skillmix.runs.migrate import COPY_NOTE, state_folder
from skillmix.runs.people import raters_of
from skillmix.runs.rows import (
    ExperimentVersion,
    Invocations,
    RunState,
    StepRecord,
    changed_keys,
    invocations_of,
    now,
    read_state,
    write_excluded,
    write_step,
    write_version,
)
from skillmix.runs.verdicts import PERSON, RulesGrader
from skillmix.runs.verdicts import RunGrader as RunGrader

_T = TypeVar("_T")
TURNS: Final = 2
"""Turns of a conversation that skillmix holds."""
_FIXED: Final = ("name", "seed", "catalog", "catalog_hash", "partition", "exclude", "format")
"""What a run cannot change; more combinations, generations, rounds, k, students and graders only extend it."""


class Run:
    """One run. What it reads from its files is kept; what it works out from its journal is kept until it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder: Path | None = None
        self._writer: JournalWriter | None = None
        self._changes = 0
        """The rows of calls that this process has changed."""
        self._remembered: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # Files

    @property
    def name(self) -> str:
        """The run's name is its folder's."""
        return self.path.resolve().name

    @property
    def _state_folder(self) -> Path:
        """The folder with `run.sqlite` and the answers of people: the run's, if it can be written."""
        if self._folder is None or not (self._folder / RUN_FILE).exists():
            self._folder = state_folder(self.path)
        return self._folder

    @property
    def file(self) -> Path:
        """The database with everything that the run holds."""
        return self._state_folder / RUN_FILE

    @property
    def people(self) -> Path:
        """The folder with the answers of people, in a file for each of them."""
        return self._state_folder / "people"

    @property
    def exists(self) -> bool:
        """Whether the run has an experiment, its own or that of an import."""
        return bool(self.state.versions)

    def step(self, name: str) -> Path:
        """The folder of a step's files."""
        return self.path / name

    # The journal

    def read(self) -> JournalReader:
        """Open the journal for reading, with the answers of people."""
        if not self.file.exists():
            raise UserError(f"There is no journal in {self.path}.", hint="Check the run's name.")
        return JournalReader(self.file, [self.people / f"{rater}.sqlite" for rater in raters_of(self.people)])

    @contextmanager
    def write(self) -> Iterator[JournalWriter]:
        """Open the journal for writing; only one process can."""
        if self._state_folder != self.path:
            raise UserError(f"{self.path} cannot be written.", hint="Check the permissions of the folder.")
        with JournalWriter(self.file) as journal:
            self._writer = journal
            self._forget()
            try:
                yield journal
            finally:
                self._changes += journal.connection.total_changes
                self._writer = None

    def remember(self, name: str, make: Callable[[], _T]) -> _T:
        """A value worked out from the journal; it is made again if this process has changed the run since."""
        changes = self._changes + (self._writer.connection.total_changes if self._writer else 0)
        if name not in self._remembered or self._remembered[name][0] != changes:
            self._remembered[name] = changes, make()
        value: _T = self._remembered[name][1]
        return value

    # What the database holds besides calls

    @cached_property
    def state(self) -> RunState:
        """The experiments, excluded combinations and finished steps."""
        if self._writer is not None:
            return read_state(self._writer.connection)
        if not self.file.exists():
            return RunState()
        with telling_what_broke(self.file), closing(connect(self.file, write=False, is_checked=False)) as connection:
            return read_state(connection)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """The connection of the open journal, in a transaction after which the state is read again."""
        assert self._writer is not None  # the caller holds the run's lock
        before = self._writer.connection.total_changes
        with self._writer.transaction():
            yield self._writer.connection
        self._changes -= self._writer.connection.total_changes - before
        for name in ("state", "cells", "earlier_cells"):
            self.__dict__.pop(name, None)

    @property
    def excluded(self) -> Mapping[str, frozenset[str]]:
        """By step, the combinations that its draws skip because one of its students was trained on them."""
        return self.state.excluded

    def exclude(self, step: str, combinations: frozenset[str]) -> None:
        """Let the draws of a step skip these combinations from now on."""
        if combinations != self.excluded.get(step, frozenset()):
            with self._changing() as connection:
                write_excluded(connection, step, combinations)
            self._remembered.clear()

    def finished(self, step: str) -> StepRecord | None:
        """The record of a step that ended with everything done; None if it has not."""
        record = self.state.steps.get(step)
        return None if record is None or record.result is None else record

    def record_step(self, step: str, record: StepRecord) -> None:
        """Store the record of a step; its seconds are added to those of before."""
        before = self.state.steps.get(step)
        seconds = round(record.seconds + (before.seconds if before else 0.0), 3)
        with self._changing() as connection:
            write_step(connection, step, replace(record, seconds=seconds), now())

    @property
    def step_seconds(self) -> dict[str, float]:
        """The wall seconds of steps that ended.

        Steps that read the whole run are left out: a report cannot show its own time, and must not change when it is
        written again.
        """
        records = {step.name: self.finished(step.name) for step in self.experiment.steps if not step.reads_whole_run}
        return {name: record.seconds for name, record in records.items() if record is not None and record.seconds}

    @property
    def invocations(self) -> Invocations:
        """What ran the run."""
        return invocations_of(self.state.versions)

    def note_invocation(self, notes: Mapping[str, object], *, machine: str | None = None) -> None:
        """Note which versions and which machine changed the run, and what else a command says about itself."""
        last = self.state.versions[-1]
        plain = dict(json.loads(json.dumps(notes)))
        known = replace(last, skillmix=__version__, python=platform.python_version(), machine=machine, notes=plain)
        if known != last:
            is_new = last.machine is None and not last.notes and last.skillmix is not None  # stored by this invocation
            version = known if is_new else replace(known, version=last.version + 1, at=now())
            with self._changing() as connection:
                write_version(connection, version)

    # The experiment

    @cached_property
    def document(self) -> dict[str, object]:
        """The present experiment as it was resolved when the run was made or last continued."""
        document = yaml.safe_load(self.yaml)
        if not isinstance(document, dict):
            raise UserError(f"{self.file} is damaged: it holds no experiment.", hint="Restore it from a copy.")
        return document

    @property
    def yaml(self) -> str:
        """The text of the experiment."""
        if not self.exists:
            raise UserError(f"The run {self.path} has no experiment.", hint="Run its experiment file.")
        return self.state.versions[-1].yaml

    @property
    def is_imported(self) -> bool:
        """Whether the calls were made elsewhere and imported."""
        return "students" not in self.document

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment; that of an imported run has no steps, students or graders."""
        if self.is_imported:
            return Experiment.model_construct(name=self.name, steps=[])
        return _experiment_in(self.document, source=f"The experiment of {self.path}")

    @cached_property
    def earlier(self) -> list[Experiment]:
        """Earlier experiments of the run with rows that the present one does not have, the oldest first."""
        texts = dict.fromkeys(one.yaml for one in reversed(self.state.versions))  # each at its latest place
        former = []
        for text in reversed(list(texts)[1:]):
            with suppress(UserError):  # one of an older version may have keys that are gone
                former.append(_experiment_in(yaml.safe_load(text), source="An earlier experiment"))
        return [] if self.is_imported else uncovered(former, self.experiment)

    @cached_property
    def known_experiment(self) -> Experiment:
        """The experiment with the students, graders and train steps of earlier ones as well."""
        students = {name: s for e in (*self.earlier, self.experiment) for name, s in e.students.items()}
        graders = {name: s for e in (*self.earlier, self.experiment) for name, s in e.graders.items()}
        own = {step.name for step in self.experiment.steps}
        trained = {s.name: s for e in self.earlier for s in e.steps if s.trains_model and s.name not in own}
        steps = [*self.experiment.steps, *trained.values()]
        return self.experiment.model_copy(update={"students": students, "graders": graders, "steps": steps})

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog that the run names, as it is now, joined with those that its steps name."""
        name = self.fact("catalog")
        if name is None:
            raise UserError(f"The run {self.name} does not say what its catalog is.", hint="Import it with --catalog.")
        known = (self.experiment, *self.earlier)
        return load_catalog(name, *dict.fromkeys(other for e in known for other in e.other_catalogs))

    @cached_property
    def unchanged_catalog(self) -> Catalog | None:
        """The catalog; None if it is unknown, gone, or not the one that the run was made with."""
        try:
            catalog = self.catalog
        except UserError:
            return None
        return catalog if self.document.get("catalog_hash") in (None, catalog.content_hash()) else None

    @cached_property
    def phrases(self) -> Phrases:
        """The wording of the criteria that graders were shown."""
        if self.is_imported:
            return stored_phrases(self.document.get("criteria"))
        return load_prompts(self.experiment.prompts, self.experiment.format).phrases

    @property
    def has_outcomes(self) -> bool:
        """Whether graders name an outcome of each text, so that the run has no points and no scores."""
        return self.phrases.outcomes is not None

    def rules(self, name: str | None = None) -> Rules:
        """The scoring rules of that name, or the run's own."""
        chosen = rules_named(name or self.experiment.rules)
        return replace(chosen, missing_marker=self.experiment.answer.missing_marker)

    @cached_property
    def graders(self) -> Mapping[str, RunGrader]:
        """The graders: those of the experiment, or those whose gradings were imported. People are not among them."""
        if self.is_imported:
            with self.read() as journal:
                return {name: RunGrader(name, "imported") for name in journal.graders() if not is_human(name)}
        return {name: _run_grader(name, settings) for name, settings in self.experiment.graders.items()}

    @cached_property
    def known_graders(self) -> Mapping[str, RunGrader]:
        """The graders of the experiment, and those of earlier experiments that it does not name."""
        if self.is_imported or not self.earlier:
            return self.graders
        return {name: _run_grader(name, settings) for name, settings in self.known_experiment.graders.items()}

    def grader(self, name: str) -> RunGrader:
        """A grader by name; the journal may hold votes of people, and of graders that no experiment names any more."""
        if is_human(name):
            return RunGrader(name, PERSON, votes=1)
        return self.known_graders.get(name) or RunGrader(name, "unknown")

    @property
    def graders_with_code(self) -> list[RunGrader]:
        """The graders in which code decides something."""
        return [grader for grader in self.known_graders.values() if grader.has_code]

    @cached_property
    def code(self) -> RulesGrader | None:
        """The code that grades; None if no grader has any."""
        return RulesGrader(self.catalog) if self.graders_with_code else None

    @cached_property
    def cells(self) -> list[PlannedCell]:
        """The planned cells of all steps; none in an imported run."""
        return cells_of(self.experiment, self.catalog, self.excluded) if self.experiment.steps else []

    @cached_property
    def earlier_cells(self) -> list[PlannedCell]:
        """The planned cells of earlier experiments."""
        return [cell for e in self.earlier for cell in cells_of(e, self.catalog, self.excluded)]

    @property
    def turns(self) -> int | None:
        """How many turns a conversation has; None if every imported conversation is complete as it is."""
        return None if self.is_imported else TURNS

    @property
    def makes_data(self) -> bool:
        """Whether the run trains or makes data sets, so that reserved skill sets mean something."""
        return any(step.stage in ("dataset", "train") for step in self.experiment.steps)

    def fact(self, name: str) -> str | None:
        """A text of experiment.yaml, such as the name of the catalog; None if the file does not say."""
        value = self.document.get(name)
        return value if isinstance(value, str) else None

    @property
    def seed(self) -> int | None:
        """The seed; None for an imported run."""
        value = self.document.get("seed")
        return value if isinstance(value, int) else None

    # Beginning and continuing

    def require_same_import(self, document: Mapping[str, object]) -> None:
        """Refuse an import into a run that is there with other settings."""
        if not self.exists:
            return
        if not self.is_imported:
            raise UserError(f"The run {self.path} exists and is that of an experiment.", hint="Use another run name.")
        self._require_equal(document, sorted(document.keys() | self.document.keys()), "run name")

    def begin_import(self, document: Mapping[str, object]) -> None:
        """Store what an imported run is, or check that it is of this import; the caller holds the run's lock."""
        self.require_same_import(document)
        if not self.exists:
            self._store(document)

    def checked_document(self, experiment: Experiment, catalog: Catalog) -> dict[str, object]:
        """An experiment as the run holds it; an error if the run is there and cannot become it."""
        document: dict[str, object] = experiment.model_dump(mode="json")
        document["catalog_hash"] = catalog.content_hash()
        # Of the prompts for graders and the default of students: a folder can change under the same name.
        document["prompts_hash"] = load_prompts(experiment.prompts).content_hash()
        if self.exists:
            self._require_equal(document, _FIXED, "name for the experiment")
        return document

    def continue_with(self, experiment: Experiment, catalog: Catalog) -> None:
        """Make an experiment the run's own; the caller holds the run's lock."""
        self._store(self.checked_document(experiment, catalog))
        self.experiment = experiment

    @contextmanager
    def continued(self, experiment: Experiment, catalog: Catalog, *, has_made: Callable[[], bool]) -> Iterator[None]:
        """Make an experiment the run's own; if it is refused before it has made anything, the former one comes back."""
        former = self.state
        self.continue_with(experiment, catalog)
        try:
            yield
        except UserError:
            if former.versions and not has_made():
                with self._changing() as connection:
                    connection.execute("DELETE FROM experiment WHERE version > ?", (former.versions[-1].version,))
                    for step in self.excluded.keys() | former.excluded.keys():
                        write_excluded(connection, step, former.excluded.get(step, ()))
                self._write_copy(former.versions[-1].yaml)
                self._forget()
            raise

    def _require_equal(self, document: Mapping[str, object], keys: "tuple[str, ...] | list[str]", what: str) -> None:
        changed = changed_keys(self.document, document, keys)
        if changed:
            raise UserError(
                f"The run {self.path} exists with another {', another '.join(changed)}.",
                hint=f"Use another {what}, or set it back.",
            )

    def _store(self, document: Mapping[str, object]) -> None:
        """Store an experiment as the present one; a copy in YAML is for people."""
        text = yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True)
        last = self.state.versions[-1] if self.exists else None
        if last is None or yaml.safe_load(last.yaml) != dict(document):
            number = 1 if last is None else last.version + 1
            one = ExperimentVersion(number, text, now(), __version__, platform.python_version(), None, {})
            with self._changing() as connection:
                write_version(connection, one)
        self._write_copy(text)
        self._forget()

    def _write_copy(self, text: str) -> None:
        write_whole(self.path / "experiment.yaml", COPY_NOTE + text)

    def _forget(self) -> None:
        """Drop whatever was read from the database."""
        for name in list(vars(self)):
            if isinstance(getattr(type(self), name, None), cached_property):
                delattr(self, name)
        self._remembered.clear()


def _experiment_in(document: Mapping[str, object], *, source: str) -> Experiment:
    settings = {key: value for key, value in document.items() if key not in ("catalog_hash", "prompts_hash")}
    return experiment_of(settings, source=source)


def _run_grader(name: str, settings: GraderSettings) -> RunGrader:
    return RunGrader(name, settings.model, settings.votes, settings.has_code, settings.asked is not None)


def new_run(name: str) -> Run:
    """A run by name (under `runs/`) or by path; it need not exist."""
    path = Path(name)
    checked_name(path.name, "run")
    return Run(path if _is_path(name) else Path("runs") / path)


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name


def open_run(name: str) -> Run:
    """An existing run by name or by path."""
    paths = [Path(name)] if _is_path(name) else [Path("runs") / name, Path(name)]
    for path in paths:
        run = Run(path)
        if run.file.exists():
            if "frequency" in run.document:
                raise UserError(
                    f"{name} is a run of skillmix frequency and has no scores: it counts skills in a corpus.",
                    hint=f"Its result is in {path / 'frequencies.json'}; the same command shows it again.",
                )
            return run
    known = sorted(
        {p.parent.name for pattern in ("experiment.yaml", RUN_FILE) for p in Path("runs").glob(f"*/{pattern}")}
    )
    listed = f"Runs here: {', '.join(known)}." if known else "There are no runs here yet."
    place = "" if _is_path(name) else f" in {Path('runs').resolve()}"
    raise UserError(f"There is no run {name!r}{place}.", hint=name_hint(name, known, otherwise=listed))


def opened(run: Run | str) -> Run:
    """A run itself, or the run of that name."""
    return open_run(run) if isinstance(run, str) else run


def rules_named(name: str) -> Rules:
    """The scoring rules of that name."""
    if name not in RULES:
        raise UserError(f"There are no rules {name!r}.", hint=f"Known: {', '.join(RULES)}.")
    return RULES[name]


def imported_document(
    run: Run, *, stage: str, catalog: Catalog | None = None, prompts: PromptSet | None = None
) -> dict[str, object]:
    """The experiment.yaml of an imported run; `criteria` is the wording that its graders were shown."""
    return {
        "name": run.name,
        "seed": None,
        "catalog": catalog.name if catalog else None,
        "catalog_hash": catalog.content_hash() if catalog else None,
        "partition": None,
        "prompts": prompts.name if prompts else None,
        "criteria": (prompts.phrases if prompts else Phrases()).as_document(),
        "steps": [{"name": "import", "stage": stage}],
    }


def processor_name(facts: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the processor."""
    with suppress(OSError):
        for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def machine_in_words() -> str:
    """The processor, its cores and the GPUs that this process uses; no name that tells whose machine it is."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)  # loading torch for this note would take seconds
    names: list[str] = []
    if cuda is not None and cuda.is_initialized():
        names = [str(cuda.get_device_name(number)) for number in range(cuda.device_count())]
    gpus = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    system = f"{platform.system()} {platform.machine()}"
    return ", ".join([processor_name(), f"{os.cpu_count() or 1} cores", *gpus, system])
