"""A run: its folder, its experiment, and its journal.

`open_run` opens an existing run, and `new_run` returns a run that may not exist yet. A command opens a `Run` once and
passes it on, so the experiment is read and checked only once. An imported run has an experiment as well, without steps,
students and graders, so that other code can treat all runs alike.
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
"""The number of turns in a conversation, unless its prompt set defines only one turn."""
_FIXED: Final = ("name", "seed", "catalog", "catalog_hash", "partition", "exclude", "format")
"""Settings that cannot change in a run. More combinations, samples, rounds, k, students or graders only extend it."""


class Run:
    """One run. Data from its files is cached. Data derived from its journal is cached until the journal changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder: Path | None = None
        self._writer: JournalWriter | None = None
        self._changes = 0
        """The number of rows that this process has changed, not counting changes to the state."""
        self._remembered: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # Files

    @property
    def name(self) -> str:
        """Return the run's name, which is the name of its folder."""
        return self.path.resolve().name

    @property
    def _state_folder(self) -> Path:
        """Return the folder with `run.sqlite` and people's answers, which is the run's folder if that is writable."""
        if self._folder is None or not (self._folder / RUN_FILE).exists():
            self._folder = state_folder(self.path)
        return self._folder

    @property
    def file(self) -> Path:
        """Return the path of the database that contains the whole run."""
        return self._state_folder / RUN_FILE

    @property
    def people(self) -> Path:
        """Return the folder that contains one file with answers for each person."""
        return self._state_folder / "people"

    @property
    def exists(self) -> bool:
        """Whether the run has an experiment, which may be imported."""
        return bool(self.state.versions)

    def step(self, name: str) -> Path:
        """Return the folder that contains a step's files."""
        return self.path / name

    # The journal

    def read(self) -> JournalReader:
        """Open the journal for reading, with people's answers."""
        if not self.file.exists():
            raise UserError(f"There is no journal in {self.path}.", hint="Check the run's name.")
        return JournalReader(self.file, [self.people / f"{rater}.sqlite" for rater in raters_of(self.people)])

    @contextmanager
    def write(self) -> Iterator[JournalWriter]:
        """Open the journal for writing. Only one process at a time can open it this way."""
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
        """Cache a value derived from the journal. It is recomputed if this process has changed the run since."""
        changes = self._changes + (self._writer.connection.total_changes if self._writer else 0)
        if name not in self._remembered or self._remembered[name][0] != changes:
            self._remembered[name] = changes, make()
        value: _T = self._remembered[name][1]
        return value

    # Contents of the database besides calls

    @cached_property
    def state(self) -> RunState:
        """Return the experiments, excluded combinations and finished steps."""
        if self._writer is not None:
            return read_state(self._writer.connection)
        if not self.file.exists():
            return RunState()
        with telling_what_broke(self.file), closing(connect(self.file, write=False, is_checked=False)) as connection:
            return read_state(connection)

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """Yield the open journal's connection inside a transaction; discard the cached state afterwards."""
        assert self._writer is not None  # the caller has locked the run
        before = self._writer.connection.total_changes
        with self._writer.transaction():
            yield self._writer.connection
        self._changes -= self._writer.connection.total_changes - before
        for name in ("state", "cells", "earlier_cells"):
            self.__dict__.pop(name, None)

    @property
    def excluded(self) -> Mapping[str, frozenset[str]]:
        """Return the combinations that each step's draws skip because a student of the step was trained on them."""
        return self.state.excluded

    def exclude(self, step: str, combinations: frozenset[str]) -> None:
        """Make the draws of a step skip these combinations from now on."""
        if combinations != self.excluded.get(step, frozenset()):
            with self._changing() as connection:
                write_excluded(connection, step, combinations)
            self._remembered.clear()

    def finished(self, step: str) -> StepRecord | None:
        """Return the record of a completely finished step; None if it is unfinished."""
        record = self.state.steps.get(step)
        return None if record is None or record.result is None else record

    def record_step(self, step: str, record: StepRecord) -> None:
        """Store the record of a step. Its seconds are added to the seconds of earlier executions."""
        before = self.state.steps.get(step)
        seconds = round(record.seconds + (before.seconds if before else 0.0), 3)
        with self._changing() as connection:
            write_step(connection, step, replace(record, seconds=seconds), now())

    @property
    def step_seconds(self) -> dict[str, float]:
        """Return the wall-clock seconds of finished steps.

        Steps that read the whole run are omitted, because a report cannot show its own time and must not change when it
        is regenerated.
        """
        records = {step.name: self.finished(step.name) for step in self.experiment.steps if not step.reads_whole_run}
        return {name: record.seconds for name, record in records.items() if record is not None and record.seconds}

    @property
    def invocations(self) -> Invocations:
        """Return the environments in which the run was executed."""
        versions = self.state.versions
        prompts: dict[str, str] = {}
        for one in versions:
            prompts |= one.notes.get("prompts", {})
        programs = (f"skillmix {one.skillmix}, Python {one.python}" for one in versions if one.skillmix and one.python)
        return Invocations(
            began=next((one.at for one in versions if one.at), None),
            versions=tuple(dict.fromkeys(programs)),
            machines=tuple(dict.fromkeys(one.machine for one in versions if one.machine)),
            prompts=prompts or None,
        )

    def note_invocation(self, notes: Mapping[str, object], *, machine: str | None = None) -> None:
        """Record the software versions and the machine of this invocation, and other facts about the command."""
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
        """Return the current experiment as it was resolved when the run was created or last continued."""
        document = yaml.safe_load(self.yaml)
        if not isinstance(document, dict):
            raise UserError(f"{self.file} is damaged: it has no experiment.", hint="Restore it from a backup.")
        return document

    @property
    def yaml(self) -> str:
        """Return the text of the experiment."""
        if not self.exists:
            raise UserError(f"The run {self.path} has no experiment.", hint="Run its experiment file.")
        return self.state.versions[-1].yaml

    @property
    def is_imported(self) -> bool:
        """Whether the calls were made by other programs and then imported."""
        return "students" not in self.document

    @cached_property
    def experiment(self) -> Experiment:
        """Return the experiment, which has no steps, students or graders in an imported run."""
        if self.is_imported:
            return Experiment.model_construct(name=self.name, steps=[])
        return _experiment_in(self.document, source=f"The experiment of {self.path}")

    @cached_property
    def earlier(self) -> list[Experiment]:
        """Return earlier experiments of the run that plan rows missing from the current experiment, oldest first."""
        texts = dict.fromkeys(one.yaml for one in reversed(self.state.versions))  # each at its latest position
        former = []
        for text in reversed(list(texts)[1:]):
            with suppress(UserError):  # an experiment from an older version may have obsolete keys
                former.append(_experiment_in(yaml.safe_load(text), source="An earlier experiment"))
        return [] if self.is_imported else uncovered(former, self.experiment)

    @cached_property
    def known_experiment(self) -> Experiment:
        """Return the experiment together with the students, graders and train steps of earlier experiments."""
        students = {name: s for e in (*self.earlier, self.experiment) for name, s in e.students.items()}
        graders = {name: s for e in (*self.earlier, self.experiment) for name, s in e.graders.items()}
        own = {step.name for step in self.experiment.steps}
        trained = {s.name: s for e in self.earlier for s in e.steps if s.trains_model and s.name not in own}
        steps = [*self.experiment.steps, *trained.values()]
        return self.experiment.model_copy(update={"students": students, "graders": graders, "steps": steps})

    @cached_property
    def catalog(self) -> Catalog:
        """Return the run's current catalog joined with the catalogs of its steps."""
        name = self.fact("catalog")
        if name is None:
            raise UserError(f"The run {self.name} does not record its catalog.", hint="Import it with --catalog.")
        known = (self.experiment, *self.earlier)
        return load_catalog(name, *dict.fromkeys(other for e in known for other in e.other_catalogs))

    @cached_property
    def unchanged_catalog(self) -> Catalog | None:
        """Return the catalog; None if it is unknown, missing, or has changed since the run was created."""
        try:
            catalog = self.catalog
        except UserError:
            return None
        return catalog if self.document.get("catalog_hash") in (None, catalog.content_hash()) else None

    @cached_property
    def phrases(self) -> Phrases:
        """Return the wording of the criteria that graders were shown."""
        if self.is_imported:
            return stored_phrases(self.document.get("criteria"))
        return load_prompts(self.experiment.prompts, self.experiment.format).phrases

    @property
    def has_outcomes(self) -> bool:
        """Whether graders choose an outcome for each text, so that the run has no points and no scores."""
        return self.phrases.outcomes is not None

    def rules(self, name: str | None = None) -> Rules:
        """Return the scoring rules with this name, or the run's own rules if no name is given."""
        chosen = rules_named(name or self.experiment.rules)
        return replace(chosen, missing_marker=self.experiment.answer.missing_marker)

    @cached_property
    def graders(self) -> Mapping[str, RunGrader]:
        """Return the graders of the experiment or of the imported gradings. People are not included."""
        if self.is_imported:
            with self.read() as journal:
                return {name: RunGrader(name, "imported") for name in journal.graders() if not is_human(name)}
        return {name: _run_grader(name, settings) for name, settings in self.experiment.graders.items()}

    @cached_property
    def known_graders(self) -> Mapping[str, RunGrader]:
        """Return the graders of the experiment, and any other graders from earlier experiments."""
        if self.is_imported or not self.earlier:
            return self.graders
        return {name: _run_grader(name, settings) for name, settings in self.known_experiment.graders.items()}

    def grader(self, name: str) -> RunGrader:
        """Return a grader by name. It can be a person, or a grader that is not in the current experiment."""
        if is_human(name):
            return RunGrader(name, PERSON, votes=1)
        return self.known_graders.get(name) or RunGrader(name, "unknown")

    @property
    def graders_with_code(self) -> list[RunGrader]:
        """Return the graders that use code."""
        return [grader for grader in self.known_graders.values() if grader.has_code]

    @cached_property
    def code(self) -> RulesGrader | None:
        """Return the object that grades texts by code; None if no grader uses code."""
        return RulesGrader(self.catalog) if self.graders_with_code else None

    @cached_property
    def cells(self) -> list[PlannedCell]:
        """Return the planned cells of all steps. An imported run has no cells."""
        return cells_of(self.experiment, self.catalog, self.excluded) if self.experiment.steps else []

    @cached_property
    def earlier_cells(self) -> list[PlannedCell]:
        """Return the planned cells of earlier experiments."""
        return [cell for e in self.earlier for cell in cells_of(e, self.catalog, self.excluded)]

    @property
    def turns(self) -> int | None:
        """Return the number of turns in a conversation; None for an import, whose conversations are all complete."""
        return None if self.is_imported else TURNS

    @property
    def makes_data(self) -> bool:
        """Whether the run trains models or makes data sets, so that reserved skill sets matter."""
        return any(step.stage in ("dataset", "train") for step in self.experiment.steps)

    def fact(self, name: str) -> str | None:
        """Return a value from experiment.yaml, such as the catalog's name; None if the value is missing."""
        value = self.document.get(name)
        return value if isinstance(value, str) else None

    @property
    def seed(self) -> int | None:
        """Return the seed; None for an imported run."""
        value = self.document.get("seed")
        return value if isinstance(value, int) else None

    # Starting and continuing

    def require_same_import(self, document: Mapping[str, object]) -> None:
        """Raise an error if the run already exists with settings that differ from the import's settings."""
        if not self.exists:
            return
        if not self.is_imported:
            raise UserError(
                f"The run {self.path} already contains an experiment; an import needs a new or imported run.",
                hint="Choose another run name.",
            )
        self._require_equal(document, sorted(document.keys() | self.document.keys()), "run name")

    def begin_import(self, document: Mapping[str, object]) -> None:
        """Store an import's settings, or check that they match the run's. The caller must have locked the run."""
        self.require_same_import(document)
        if not self.exists:
            self._store(document)

    def checked_document(self, experiment: Experiment, catalog: Catalog) -> dict[str, object]:
        """Return an experiment as the run stores it; raise an error if the existing run cannot continue with it."""
        document: dict[str, object] = experiment.model_dump(mode="json")
        document["catalog_hash"] = catalog.content_hash()
        # Hash the prompts for graders and the default prompts for students, because a prompt folder can change without
        # a change of name.
        document["prompts_hash"] = load_prompts(experiment.prompts).content_hash()
        if self.exists:
            self._require_equal(document, _FIXED, "name for the experiment")
        return document

    def continue_with(self, experiment: Experiment, catalog: Catalog) -> None:
        """Make an experiment the current experiment of the run. The caller must have locked the run."""
        self._store(self.checked_document(experiment, catalog))
        self.experiment = experiment

    @contextmanager
    def continued(self, experiment: Experiment, catalog: Catalog, *, has_made: Callable[[], bool]) -> Iterator[None]:
        """Make an experiment the current one; if an error occurs before any result is made, restore the former one."""
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
                f"The run {self.path} already exists with another {', another '.join(changed)}.",
                hint=f"Choose another {what}, or restore the old settings.",
            )

    def _store(self, document: Mapping[str, object]) -> None:
        """Store an experiment as the current one, with a YAML copy for people."""
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
        """Discard all cached data from the database."""
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
    """Return a run by name (in `runs/`) or by path; the run need not exist."""
    path = Path(name)
    checked_name(path.name, "run")
    return Run(path if _is_path(name) else Path("runs") / path)


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name


def open_run(name: str) -> Run:
    """Return an existing run by name or by path."""
    paths = [Path(name)] if _is_path(name) else [Path("runs") / name, Path(name)]
    for path in paths:
        run = Run(path)
        if run.file.exists():
            if "frequency" in run.document:
                raise UserError(
                    f"{name} is a run of skillmix frequency and has no scores: it counts skills in a corpus.",
                    hint=f"Its result is in {path / 'frequencies.json'}; rerun the command to show it.",
                )
            return run
    known = sorted(
        {p.parent.name for pattern in ("experiment.yaml", RUN_FILE) for p in Path("runs").glob(f"*/{pattern}")}
    )
    listed = f"Runs here: {', '.join(known)}." if known else "There are no runs here yet."
    place = "" if _is_path(name) else f" in {Path('runs').resolve()}"
    raise UserError(f"There is no run {name!r}{place}.", hint=name_hint(name, known, otherwise=listed))


def opened(run: Run | str) -> Run:
    """Return the given run, or open the run with the given name."""
    return open_run(run) if isinstance(run, str) else run


def rules_named(name: str) -> Rules:
    """Return the scoring rules with this name."""
    if name not in RULES:
        raise UserError(f"There are no rules {name!r}.", hint=f"Known: {', '.join(RULES)}.")
    return RULES[name]


def imported_document(
    run: Run, *, stage: str, catalog: Catalog | None = None, prompts: PromptSet | None = None
) -> dict[str, object]:
    """Make the experiment.yaml of an imported run. Its key `criteria` contains the wording that graders were shown."""
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
    """Return the name of the processor."""
    with suppress(OSError):
        for line in facts.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def machine_in_words() -> str:
    """Describe the processor, its cores and the GPUs that this process uses, without the name of the machine."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)  # loading torch only for this record would take seconds
    names: list[str] = []
    if cuda is not None and cuda.is_initialized():
        names = [str(cuda.get_device_name(number)) for number in range(cuda.device_count())]
    gpus = [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    system = f"{platform.system()} {platform.machine()}"
    return ", ".join([processor_name(), f"{os.cpu_count() or 1} cores", *gpus, system])
