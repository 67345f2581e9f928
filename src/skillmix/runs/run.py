"""A run: its folder, its copy of the experiment, and its journal.

`open_run` finds a run that exists, `new_run` names one that may not exist yet. A `Run` is opened once for a command and
handed on; it reads and checks experiment.yaml once. An imported run has an experiment, too: one without steps, students
and graders, so that readers need not ask which kind of run they have.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from skillmix.calls import checked_name, is_human
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, GraderSettings, experiment_of
from skillmix.experiment.plan import PlannedCell, cells_of, uncovered
from skillmix.files import read_yaml
from skillmix.grading.answers import RULES, Rules
from skillmix.prompts.prompt_set import PromptSet, load_prompts
from skillmix.prompts.rubric import Phrases, stored_phrases
from skillmix.render import name_hint
from skillmix.runs.finished.draws_around import DrawsAround
from skillmix.runs.finished.lost_journal import require_journal
from skillmix.runs.finished.manifest import MANIFEST, add_entry
from skillmix.runs.finished.step_records import FinishedSteps
from skillmix.runs.folder_replacement import write_whole
from skillmix.runs.journal.changed_settings import changed_keys
from skillmix.runs.journal.journal import MAIN_FILE, JournalReader, JournalWriter, run_journal
from skillmix.runs.journal.locking import locked
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
        self.finished = FinishedSteps(path / "finished.json")
        self.around = DrawsAround(path / "around.json")
        self._writers = 0
        self._remembered: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # Files

    @property
    def name(self) -> str:
        """The run's name is its folder's."""
        return self.path.resolve().name

    @property
    def journal(self) -> Path:
        """The folder of journal files."""
        return self.path / "journal"

    @property
    def has_journal(self) -> bool:
        """Whether any call was ever stored."""
        return (self.journal / MAIN_FILE).is_file()

    @property
    def experiment_file(self) -> Path:
        """The experiment as it was resolved when the run was made or last continued."""
        return self.path / "experiment.yaml"

    @property
    def earlier_file(self) -> Path:
        """Earlier experiments of the run with rows that the present one does not have."""
        return self.path / "earlier.yaml"

    def step(self, name: str) -> Path:
        """The folder of a step's files."""
        return self.path / name

    def note_invocation(self, facts: Mapping[str, object]) -> None:
        """Add an entry to the manifest: which command ran, with which versions."""
        add_entry(self.path / MANIFEST, facts)

    # The journal

    def read(self) -> JournalReader:
        """Open the journal for reading."""
        require_journal(self.path, self.journal, self.finished)
        return JournalReader(self.journal)

    @contextmanager
    def write(self) -> Iterator[JournalWriter]:
        """Open the journal for writing; only one process can."""
        require_journal(self.path, self.journal, self.finished)
        with run_journal(self.journal) as journal:
            self._writers += 1
            self._forget()
            self._reload()
            try:
                yield journal
            finally:
                self._writers -= 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out without opening the journal."""
        with locked(self.journal / MAIN_FILE):
            self._reload()
            yield

    def _reload(self) -> None:
        """Read the records and the draws again, because another process may have written while this one waited."""
        self.finished.reload()
        self.around.reload()
        self._drop_cells()

    def remember(self, name: str, make: Callable[[], _T]) -> _T:
        """A value worked out from the journal; it is made once, unless this process is writing to the journal."""
        if self._writers:
            return make()
        if name not in self._remembered:
            self._remembered[name] = make()
        value: _T = self._remembered[name]
        return value

    # The experiment

    @cached_property
    def document(self) -> dict[str, object]:
        """The content of experiment.yaml."""
        document = read_yaml(self.experiment_file)
        if not isinstance(document, dict):
            raise UserError(f"{self.experiment_file} is damaged.", hint="Restore it from a copy.")
        return document

    @property
    def is_imported(self) -> bool:
        """Whether the calls were made elsewhere and imported."""
        return "students" not in self.document

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment; that of an imported run has no steps, students or graders."""
        if self.is_imported:
            return Experiment.model_construct(name=self.name, steps=[])
        return _experiment_in(self.document, source="experiment.yaml")

    @cached_property
    def earlier(self) -> list[Experiment]:
        """Earlier experiments of the run with rows that the present one does not have, the oldest first."""
        documents = read_yaml(self.earlier_file) if self.earlier_file.exists() else []
        if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
            raise UserError(f"{self.earlier_file} is damaged.", hint="Restore it from a copy, or delete it.")
        return [_experiment_in(document, source="earlier.yaml") for document in documents]

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
        """The catalogue that the run names, as it is now, joined with those that its steps name."""
        name = self.fact("catalog")
        if name is None:
            raise UserError(
                f"The run {self.name} does not say what its catalogue is.", hint="Import it with --catalog."
            )
        known = (self.experiment, *self.earlier)
        return load_catalog(name, *dict.fromkeys(other for e in known for other in e.other_catalogs))

    @cached_property
    def unchanged_catalog(self) -> Catalog | None:
        """The catalogue; None if it is unknown, gone, or not the one that the run was made with."""
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
        return cells_of(self.experiment, self.catalog, self.around.by_step) if self.experiment.steps else []

    @cached_property
    def earlier_cells(self) -> list[PlannedCell]:
        """The planned cells of earlier experiments."""
        return [cell for e in self.earlier for cell in cells_of(e, self.catalog, self.around.by_step)]

    def draw_around(self, step: str, combinations: frozenset[str]) -> None:
        """Let the draws of a step skip these combinations from now on."""
        self.around.store(step, combinations)
        self._drop_cells()

    def _drop_cells(self) -> None:
        for name in ("cells", "earlier_cells"):
            self.__dict__.pop(name, None)

    @property
    def turns(self) -> int | None:
        """How many turns a conversation has; None if every imported conversation is complete as it is."""
        return None if self.is_imported else TURNS

    @property
    def makes_data(self) -> bool:
        """Whether the run trains or makes data sets, so that reserved skill sets mean something."""
        return any(step.stage in ("dataset", "train") for step in self.experiment.steps)

    def fact(self, name: str) -> str | None:
        """A text of experiment.yaml, such as the name of the catalogue; None if the file does not say."""
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
        if not self.experiment_file.exists():
            return
        if not self.is_imported:
            raise UserError(f"The run {self.path} exists and is that of an experiment.", hint="Use another run name.")
        self._require_equal(document, sorted(document.keys() | self.document.keys()), "run name")

    def begin_import(self, document: Mapping[str, object]) -> None:
        """Make the folder of an imported run, or check that it is of this import."""
        self.require_same_import(document)
        if not self.experiment_file.exists():
            self._store(document)

    def checked_document(self, experiment: Experiment, catalog: Catalog) -> dict[str, object]:
        """The content of experiment.yaml for an experiment; an error if the run is there and cannot become it."""
        document: dict[str, object] = experiment.model_dump(mode="json")
        document["catalog_hash"] = catalog.content_hash()
        document["prompts_hash"] = _prompts_hash(experiment)
        if self.experiment_file.exists():
            self._require_equal(document, _FIXED, "name for the experiment")
        return document

    def continue_with(self, experiment: Experiment, catalog: Catalog) -> None:
        """Make the run's folder, or replace its copy of the experiment; the caller holds the run's lock."""
        document = self.checked_document(experiment, catalog)
        if self.experiment_file.exists() and self.document != document:
            self._keep_earlier(experiment)
        self._store(document)
        self.experiment = experiment

    def _keep_earlier(self, experiment: Experiment) -> None:
        """Store the experiments of the run so far that the next one does not cover."""
        earlier = self._uncovered(experiment)
        if earlier:
            write_whole(self.earlier_file, _as_yaml([e.model_dump(mode="json") for e in earlier]))
        else:
            self.earlier_file.unlink(missing_ok=True)

    def _uncovered(self, experiment: Experiment) -> list[Experiment]:
        """The experiments of the run so far that plan or name something which the next one does not."""
        try:
            last = [self.experiment]
        except UserError:  # a file of an older version may have keys that are gone
            last = []
        return uncovered([*self.earlier, *last], experiment)

    @contextmanager
    def continued(self, experiment: Experiment, catalog: Catalog, *, has_made: Callable[[], bool]) -> Iterator[None]:
        """Make an experiment the run's own; if it is refused before it has made anything, the former one comes back."""
        former = self._texts_of_state()
        self.continue_with(experiment, catalog)
        try:
            yield
        except UserError:
            if former[self.experiment_file] is not None and not has_made():
                self._restore(former)
            raise

    def _texts_of_state(self) -> dict[Path, str | None]:
        files = (self.experiment_file, self.earlier_file, self.around.file)
        return {file: file.read_text(encoding="utf-8") if file.exists() else None for file in files}

    def _restore(self, texts: Mapping[Path, str | None]) -> None:
        for file, text in texts.items():
            if text is None:
                file.unlink(missing_ok=True)
            else:
                write_whole(file, text)
        self.around.reload()
        self._forget()

    def _require_equal(self, document: Mapping[str, object], keys: "tuple[str, ...] | list[str]", what: str) -> None:
        changed = changed_keys(self.document, document, keys)
        if changed:
            raise UserError(
                f"The run {self.path} exists with another {', another '.join(changed)}.",
                hint=f"Use another {what}, or set it back.",
            )

    def _store(self, document: Mapping[str, object]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_whole(self.experiment_file, _as_yaml(dict(document)))
        self._forget()
        self.document = dict(document)

    def _forget(self) -> None:
        """Drop whatever was read from experiment.yaml or depends on it."""
        for name in list(vars(self)):
            if isinstance(getattr(type(self), name, None), cached_property):
                delattr(self, name)
        self._remembered.clear()


def _experiment_in(document: Mapping[str, object], *, source: str) -> Experiment:
    settings = {key: value for key, value in document.items() if key not in ("catalog_hash", "prompts_hash")}
    return experiment_of(settings, source=source)


def _prompts_hash(experiment: Experiment) -> str:
    """A hash of the prompts for graders, and the default of students; a folder can change under the same name."""
    return load_prompts(experiment.prompts).content_hash()


def _as_yaml(document: object) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


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
        if (path / "experiment.yaml").exists() or (path / "journal").is_dir():
            return _with_texts(Run(path), name)
    known = sorted(p.parent.name for p in Path("runs").glob("*/experiment.yaml"))
    listed = f"Runs here: {', '.join(known)}." if known else "There are no runs here yet."
    place = "" if _is_path(name) else f" in {Path('runs').resolve()}"
    raise UserError(f"There is no run {name!r}{place}.", hint=name_hint(name, known, otherwise=listed))


def _with_texts(run: Run, name: str) -> Run:
    """The run, unless it is one of `skillmix frequency`, which has no texts of students."""
    if run.experiment_file.exists() and "frequency" in run.document:
        raise UserError(
            f"{name} is a run of skillmix frequency and has no scores: it counts skills in a corpus.",
            hint=f"Its result is in {run.path / 'frequencies.json'}; the same command shows it again.",
        )
    return run


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
