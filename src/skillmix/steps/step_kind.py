"""`StepKind`, the operations on steps of one kind, and `RunResult`, which collects the results of steps."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from skillmix.calls import CallProblem
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.own_code import CODE_FILE
from skillmix.experiment.experiment import Experiment, GraderSettings, StudentSettings
from skillmix.experiment.plan import PlannedCell, RowKey
from skillmix.experiment.step_base import Step
from skillmix.files import own_or_shipped
from skillmix.hashing import short_id
from skillmix.prompts.prompt_set import load_prompts
from skillmix.prompts.rubric import OUTCOMES
from skillmix.render import plural
from skillmix.runs.calling import StepContext
from skillmix.runs.conversations import Conversations, model_name
from skillmix.runs.progress import Work
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts, StopReason
from skillmix.runs.verdicts import code_version
from skillmix.scores.cells import CellScore
from skillmix.scores.lineages import lineage_of_student
from skillmix.scores.planned_work import planned_calls
from skillmix.scores.safety import OutcomeScore
from skillmix.steps.estimates import CallEstimate, EstimateBasis

if TYPE_CHECKING:
    from skillmix.datasets.build import WrittenDataset


_SPEED_AND_ACCESS: Final = {"concurrency", "timeout", "key", "insecure", "proxy", "batch"}
_SHOWN_OTHERWISE: Final = {"model", "prompts", "rounds", "tuned_from", "trained_on", "lineage"}
"""Model settings that `of_calls` records in another form."""
Inputs = dict[str, Any]
"""The inputs of a step: settings and content hashes that its result depends on, by their names in messages."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The experiment, catalog and run from which the inputs of a step are computed."""

    experiment: Experiment
    """The experiment, with a student for every train step that has saved its model."""
    catalog: Catalog
    run: Run

    def model(self, spec: str) -> str:
        """Identify a model trained here by its lineage, and any other model by its name in requests."""
        name, _, identity = model_name(spec).partition("#")
        return identity or name

    def prompts(self, name: str | None) -> list[str]:
        """Identify a prompt set, by default the experiment's, by its name and hash."""
        chosen = name or self.experiment.prompts
        return [chosen, load_prompts(chosen).content_hash()]


def of_settings(step: Step, *, without: Iterable[str] = ()) -> Inputs:
    """Return a step's settings as inputs."""
    settings = step.model_dump(mode="json", exclude={"name", "stage", *without})
    return {f"its {name}": value for name, value in settings.items()}


def of_draws(inputs: StepInputs) -> Inputs:
    """Return the inputs that every draw depends on, and the version of the code that parses and grades texts."""
    experiment, catalog = inputs.experiment, inputs.catalog
    return {  # stored runs contain these names, so they cannot change
        "the seed": experiment.seed,
        "the catalogue": catalog.content_hash(),
        **{f"the catalogue {name}": member.content_hash() for name, member in catalog.members.items() if name},
        "the words of the topics": short_id({t: list(map(list, w)) for t, w in catalog.vocabulary.items()}),
        "the partition": experiment.partition,
        "the exclude list": experiment.exclude,
        "the code that reads replies and checks texts": code_version(),
        **({f"the {CODE_FILE} of the catalogue": catalog.code.hash} if catalog.code else {}),
    }


def of_calls(students: Iterable[str], graders: Iterable[str], inputs: StepInputs) -> Inputs:
    """Return the inputs that the calls of students and graders depend on, besides draws, and the rules for replies."""
    experiment = inputs.experiment
    found: Inputs = {
        "the prompt set": inputs.prompts(None),
        "the rules": experiment.rules,
        "the treatment of missing markers": experiment.answer.missing_marker,
    }
    asked: list[tuple[str, str, StudentSettings | GraderSettings]] = [
        *(("student", name, experiment.students[name]) for name in students if name in experiment.students),
        *(("grader", name, experiment.graders[name]) for name in graders),
    ]
    for role, name, settings in asked:
        whose = f"of the {role} {name}"
        plain = settings.model_dump(mode="json", exclude=_SPEED_AND_ACCESS | _SHOWN_OTHERWISE)
        found |= {f"the {key} {whose}": value for key, value in plain.items()}
        found[f"the model {whose}"] = inputs.model(settings.asked) if settings.asked else settings.model
        if isinstance(settings, GraderSettings):
            found[f"the prompts {whose}"] = settings.prompts
            found[f"the rounds {whose}"] = settings.votes
        else:
            found[f"the prompts {whose}"] = inputs.prompts(settings.prompts)
            if settings.declares_lineage:
                lineage = lineage_of_student(experiment, name)
                found[f"the lineage {whose}"] = lineage.identity if lineage else None
    return found


def of_files(name: str, files: Iterable[str]) -> Inputs:
    """Return the hashes of files that the experiment lists; None for an unreadable file."""
    found: Inputs = {}
    for file in files:
        try:
            with own_or_shipped(file).open("rb") as content:
                found[f"{name} {file}"] = file_digest(content, "blake2b").hexdigest()
        except OSError:
            found[f"{name} {file}"] = None
    return found


StepT = TypeVar("StepT", bound=Step)


@dataclass(frozen=True, slots=True)
class Trained:
    """The checkpoint that a train step produced."""

    step: str
    folder: Path
    was_there: bool
    """Whether an earlier invocation had already trained the model."""

    @property
    def spec(self) -> str:
        """Return the model string of the checkpoint."""
        return f"local:{self.folder}"


@dataclass(frozen=True, slots=True)
class RunResult:
    """The results of one invocation of an experiment."""

    run: Run
    counts: dict[str, CallCounts] = field(default_factory=dict)
    """Calls by step."""
    datasets: "dict[str, WrittenDataset]" = field(default_factory=dict)
    """Data sets by step."""
    trained: dict[str, Trained] = field(default_factory=dict)
    """Models by step."""
    reports: list[Path] = field(default_factory=list)
    """Paths of the report pages."""
    seconds: float = 0.0
    """Duration of this invocation in seconds."""
    has_unpriced: bool = False
    """Whether this invocation called models with an unknown price."""
    graded_cells: frozenset[RowKey] = frozenset()
    """The cells of the score table that the steps grade."""
    taken: set[str] = field(default_factory=set)
    """Steps that an earlier invocation had finished."""
    waiting: dict[str, list[str]] = field(default_factory=dict)
    """For each waiting step, descriptions of the missing inputs, such as people's answers."""

    @property
    def has_made(self) -> bool:
        """Whether this invocation made calls or data sets."""
        return bool(self.called or self.datasets.keys() - self.taken)

    @property
    def called(self) -> int:
        """Count the calls that all steps made."""
        return sum(counts.called for counts in self.counts.values())

    @property
    def cost_usd(self) -> float | None:
        """Return the cost of the calls; None if a model's price is unknown."""
        return None if self.has_unpriced else sum(counts.cost_usd for counts in self.counts.values())

    @property
    def found(self) -> int:
        """Count outcomes that were already in the journal."""
        return sum(counts.found for counts in self.counts.values())

    @property
    def failed(self) -> dict[str, CallProblem]:
        """Return the problem of each call without an outcome."""
        return {str(key): problem for counts in self.counts.values() for key, problem in counts.failed.items()}

    def failure_lines(self) -> list[str]:
        """Describe the failed calls by reason, each with a count, a detail and an example."""
        by_reason: dict[str, list[tuple[str, CallProblem]]] = {}
        for key, problem in self.failed.items():
            by_reason.setdefault(problem.reason, []).append((key, problem))
        lines = []
        for reason, calls in by_reason.items():
            key, problem = next((call for call in calls if call[1].detail), calls[0])
            detail = f": {problem.detail}" if problem.detail else ""
            such_as = "such as " if len(calls) > 1 else ""
            lines.append(f"{plural(len(calls), 'call')}: {reason}{detail} ({such_as}{key})")
        return lines

    def ungraded(self, scores: Iterable[CellScore]) -> int:
        """Count texts in the graded cells without a score, because grades are missing or unparseable."""
        by_cell: dict[RowKey, int] = {}
        for score in scores:
            cell = (score.student, score.grader, score.setting, score.k)
            if cell in self.graded_cells and score.sets == "all":
                by_cell[cell] = max(by_cell.get(cell, 0), score.ungraded)
        return sum(by_cell.values())

    def undecided(self, scores: Iterable[OutcomeScore]) -> int:
        """Count texts in the graded cells without an outcome."""
        first = [score for score in scores if score.outcome == OUTCOMES[0]]
        return sum(s.undecided for s in first if (s.student, s.grader, s.setting, s.k) in self.graded_cells)

    @property
    def stopped(self) -> StopReason | None:
        """Return why no more calls were started; None if all were."""
        return next((counts.stopped for counts in self.counts.values() if counts.stopped), None)

    @property
    def is_complete(self) -> bool:
        """Whether all calls, texts and answers of people exist."""
        return self.has_all_texts and not self.waiting

    @property
    def has_all_texts(self) -> bool:
        """Whether every call of the steps succeeded and no text is missing."""
        is_short = any(counts.left_out for counts in self.counts.values())
        is_short |= any(dataset.short for dataset in self.datasets.values())
        return not (self.failed or self.stopped or is_short)


class StepKind(ABC, Generic[StepT]):
    """The checks, estimates and execution of steps of one kind. A subclass overrides the methods that apply to it."""

    def check(self, step: StepT, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Raise an error, before the run is changed, for missing files and for folders that the step must not replace.

        Every kind that writes files outside `run.sqlite` needs this check; `ReportKind` is a short example.
        """

    def check_students(self, step: StepT, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Raise an error if the step must not call one of its students."""

    def first_cells(self, step: StepT, context: StepContext) -> Iterable[tuple[Conversations, PlannedCell]]:
        """Return the cells whose first conversations are compared with the journal before the first call."""
        return ()

    def estimates(self, step: StepT, basis: EstimateBasis) -> list[CallEstimate]:
        """Estimate the step's requests to each model for `--dry-run`."""
        return []

    def work(self, step: StepT, experiment: Experiment, catalog: Catalog, run: Run) -> Work | None:
        """Return the step's work for the progress bar; None if there is nothing to show."""
        if step.reads_whole_run:
            return Work(step.name, step.stage, total=1)  # its progress is not measured
        makes_calls = step.student_names or step.grader_names
        return planned_calls(step, experiment, catalog) if makes_calls else None

    def inputs(self, step: StepT, source: StepInputs) -> Inputs | None:
        """Return all dependencies of the step's output; None for a step that is never skipped.

        The version of skillmix, and the paths and times of files, are not among them.
        """
        return None

    def made(self, step: StepT, run: Run, result: RunResult) -> dict[str, Any]:
        """Return the results of a finished step as JSON."""
        return {}

    def take(self, step: StepT, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """Add recorded results to `result` and describe them; return None if they no longer exist."""
        return None

    def prepare(self, step: StepT, context: StepContext) -> None:
        """Store inputs that the step itself determines, such as the combinations that its draws skip."""

    @abstractmethod
    def run(self, step: StepT, context: StepContext, result: RunResult) -> bool:
        """Run the step, and return whether later steps may begin.

        Print messages with `say`. Add a field to `RunResult` for output that callers need.
        """
