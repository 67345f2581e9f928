"""Make the calls of one step (generate, grade or both) that are missing from the journal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from skillmix.calls import Model
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, Settings, settings_by_model
from skillmix.experiment.step_base import Step
from skillmix.models.ray import OnRay, RayCluster
from skillmix.models.servers.started import SERVERS
from skillmix.models.simple import JoinedModel
from skillmix.models.specs import ModelOptions, open_model, parse_spec, provider_of
from skillmix.prompts.prompt_set import load_prompts
from skillmix.runs.batches.step_batches import WAIT, open_batched, watch
from skillmix.runs.budget import Budget, Task
from skillmix.runs.conversations import Conversations
from skillmix.runs.journal import JournalWriter
from skillmix.runs.progress import NO_PROGRESS, RunProgress, say, watched
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts, Follow, Scheduler, stopping_on_interrupt
from skillmix.runs.students import require_trained

_MAX_OPEN: Final = 512
_MAX_OPEN_LOCALLY: Final = 8192
"""The maximum number of open conversations if skillmix itself runs a model. On a GPU, a model can serve thousands."""
_MAX_OPEN_IN_BATCHES: Final = 1_000_000
"""The maximum number of open conversations with batches, because one batch contains the first turns of all."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """The context that all steps of a run share."""

    experiment: Experiment
    catalog: Catalog
    run: Run
    journal: JournalWriter
    budget: Budget
    progress: RunProgress = NO_PROGRESS
    cluster: RayCluster | None = None
    """The Ray cluster whose workers open the models of steps; None if this process opens them."""
    batch_wait: float = WAIT
    """A step stops waiting for its batches after this many seconds without a result; with 0, it does not wait."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The students and graders whose calls a step makes."""

    step: str
    students: tuple[str, ...]
    """The students to call. A grading step has none, because it generates no texts."""
    graders: tuple[str, ...]

    def models(self, experiment: Experiment) -> dict[str, Settings]:
        """Return the settings of the models to call, by the names that tasks use."""
        for name in self.students:
            require_trained(experiment, name)
        return settings_by_model(experiment, self.students, self.graders)


def calls_of(step: Step) -> Calls:
    """Return the students and graders that a step calls."""
    return Calls(step.name, tuple(dict.fromkeys(step.student_names)), step.grader_names)


def conversations_of(calls: Calls, context: StepContext) -> Conversations:
    """Return the object that builds a step's requests."""
    experiment = context.experiment
    names = {experiment.prompts, *(s.prompts or experiment.prompts for s in experiment.students.values())}
    prompts = {name: load_prompts(name, experiment.format) for name in names}
    return Conversations(experiment, context.catalog, prompts, graders=calls.graders)


async def make_calls(calls: Calls, cells: Sequence[PlannedCell], context: StepContext, counts: CallCounts) -> None:
    """Make the missing calls of the cells' conversations."""
    conversations = conversations_of(calls, context)
    for cell in cells:
        context.journal.add_combinations(cell.combinations)
    if calls.students:
        context.journal.count_conversations(
            (cell.student, combination.id, generation)
            for cell in cells
            for combination, generation in conversations_of_cell(cell)
        )
    used = calls.models(context.experiment)
    async with watched(context.progress, calls.step, counts):
        for group in passes(used):
            found_before = counts.found
            wanted = [cell for cell in cells if group.students is None or cell.student in group.students]
            source = FirstTurns(conversations, context.journal, counts).of(wanted)
            now = {name: used[name] for name in group.models}
            await serve(now, source, conversations.follow, context, counts)
            if group.is_repeated:  # an earlier pass has counted these calls
                counts.found = found_before
            if counts.stopped:
                break
    if calls.students:
        counts.left_out = 0  # calls skipped in one pass are made in another


def conversations_of_cell(cell: PlannedCell) -> Iterator[tuple[Combination, int]]:
    """Yield the combination and sample of each conversation in a cell, because a list might not fit into memory."""
    for combination in cell.combinations:
        for generation in cell.numbers:
            yield combination, generation


@dataclass(frozen=True, slots=True)
class Pass:
    """Models that are open together: all models that run elsewhere, and at most one that runs in this process.

    The model in this process may serve several students with different prompts or sampling, and is loaded only once.
    """

    models: tuple[str, ...]
    students: frozenset[str] | None = None
    """The students whose conversations the pass covers; None for all students."""
    is_repeated: bool = False
    """Whether an earlier pass has counted the same conversations."""


def passes(used: Mapping[str, Settings]) -> list[Pass]:
    """Divide the models of a step into passes.

    Each local model has its own pass, and its memory is freed before the next model is loaded.
    """
    local = [name for name, settings in used.items() if provider_of(str(settings.asked)).is_in_process]
    remote = tuple(name for name in used if name not in local)
    students = [name for name in local if name.startswith("student:")]
    sharing: dict[_Loaded, list[str]] = {}
    for name in students:
        sharing.setdefault(_loaded(used[name]), []).append(name)
    result = [
        Pass((*remote, *names), students=frozenset(name.removeprefix("student:") for name in names))
        for names in sharing.values()
    ]
    if len(students) < sum(name.startswith("student:") for name in used) or not students:
        result.insert(0, Pass(remote))
    graders = [name for name in local if name.startswith("grader:")]
    return [*result, *(Pass((name,), is_repeated=True) for name in graders)]


_Loaded = tuple[str, int | None, bool]


def _loaded(settings: Settings) -> _Loaded:
    """Return the settings that students must share to use one loaded model; prompts and sampling may differ."""
    return str(settings.asked), settings.concurrency, settings.joined


async def serve(
    used: Mapping[str, Settings],
    source: Iterator[Task | None],
    follow: Follow,
    context: StepContext,
    counts: CallCounts,
    begin: Callable[[Scheduler], None] = lambda scheduler: None,
) -> None:
    """Open the models and run the tasks from a source. `begin` receives the scheduler before the first task."""
    async with AsyncExitStack() as opened:
        models = await opened_models(used, opened, say, context.cluster)
        in_batches = open_batched(used, models, context.journal.submissions, context.budget, opened)
        scheduler = Scheduler(
            models,
            context.journal,
            budget=context.budget,
            max_open=max_open(models),
            batched=in_batches,
        )
        scheduler.say = say
        watch(in_batches.values(), scheduler, wait=context.batch_wait)
        begin(scheduler)
        with stopping_on_interrupt(scheduler):
            await scheduler.run(source, follow, counts)


def max_open(models: Mapping[str, Model]) -> int:
    """Return the number of conversations that may be open at once."""
    limits = [model.limits for model in models.values()]
    if any(one.may_rest for one in limits):
        return _MAX_OPEN_IN_BATCHES
    if any(one.in_process for one in limits):
        return _MAX_OPEN_LOCALLY
    return max(_MAX_OPEN, 2 * sum(one.in_flight or 0 for one in limits))


async def opened_models(
    used: Mapping[str, Settings],
    opened: AsyncExitStack,
    say: Callable[[str], None],
    cluster: RayCluster | None = None,
) -> dict[str, Model]:
    """Open the models of a step by the names that tasks use; names of the same local model share one instance."""
    if cluster is not None:
        cluster.use(is_local=any(provider_of(str(settings.asked)).is_in_process for settings in used.values()))
    models: dict[str, Model] = {}
    in_process: dict[_Loaded, Model] = {}
    for name, settings in used.items():
        spec = parse_spec(str(settings.asked))
        if provider_of(spec).is_engine:
            SERVERS.stop()  # one of the models may occupy the memory of the GPU
        model = in_process.get(_loaded(settings))
        if model is None:
            options = ModelOptions(settings.concurrency, settings.timeout, settings.access, say)
            if cluster is None or settings.batch or provider_of(spec).stays_here:
                model = open_model(spec, options)
            else:
                model = OnRay(cluster, spec, options)
            opened.push_async_callback(model.close)
            model = JoinedModel(model) if settings.joined else model
        if provider_of(spec).is_in_process:
            in_process[_loaded(settings)] = model
        models[name] = model
    return models


class FirstTurns:
    """Begins conversations; looks up each student's stored conversations in the journal only once."""

    def __init__(self, conversations: Conversations, journal: JournalWriter, counts: CallCounts) -> None:
        self._conversations = conversations
        self._journal = journal
        self._counts = counts
        self._done: dict[str, dict[tuple[str, int], int]] = {}
        """The number of calls of each conversation, by student."""
        self._seen: set[tuple[str, str, int]] = set()

    def of(self, cells: Sequence[PlannedCell]) -> Iterator[Task]:
        """Yield the first turn of each unfinished conversation, only once if several cells share the conversation.

        A conversation that has all its calls is checked for unparseable votes. The first conversation of each cell is
        always yielded, so that a changed setting is detected.
        """
        for cell in cells:
            if cell.student not in self._done:
                self._done[cell.student] = self._journal.calls_by_conversation(cell.student)
            done = self._done[cell.student]
            all_calls = self._conversations.turns_of(cell.student) + self._conversations.votes_wanted()
            for index, (combination, generation) in enumerate(conversations_of_cell(cell)):
                conversation = cell.student, combination.id, generation
                if conversation in self._seen:
                    continue
                self._seen.add(conversation)
                if index > 0 and done.get((combination.id, generation), 0) >= all_calls:
                    calls = self._journal.conversation(*conversation)
                    if self._conversations.is_settled(combination, calls):
                        self._counts.found += sum(self._conversations.has_part(call.key) for call in calls)
                        continue
                yield self._conversations.first(cell.student, combination, generation)
