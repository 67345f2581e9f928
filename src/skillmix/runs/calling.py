"""One step of calls: generate, grade or both; what is missing of it is asked, everything else is found."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count, product
from typing import Final

from skillmix.calls import Model
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, Draw, all_combinations
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, Settings, settings_by_model
from skillmix.experiment.sections import Step
from skillmix.models.specs import Access, ModelOptions, open_model, parse_spec, provider_of
from skillmix.prompts.files import load_prompts
from skillmix.runs.budget import Budget, Task
from skillmix.runs.conversations import Conversations
from skillmix.runs.journal.journal import JournalWriter
from skillmix.runs.progress.progress import NO_PROGRESS, RunProgress, watched
from skillmix.runs.progress.stopping import stopping_on_interrupt
from skillmix.runs.progress.terminal import say
from skillmix.runs.run import TURNS, Run
from skillmix.runs.scheduler import CallCounts, Scheduler
from skillmix.runs.students import require_trained

_MOST_OPEN: Final = 512
_MOST_OPEN_LOCALLY: Final = 8192
"""Conversations under way at once; a model on a GPU takes in thousands."""


class SharedDraws:
    """Endless draws of a run's steps, each made once: the check before a step and the step itself share them."""

    def __init__(self) -> None:
        self._draws: dict[Draw, tuple[list[Combination], Iterator[Combination]]] = {}

    def combinations(self, draw: Draw) -> Iterator[Combination]:
        """Every combination of a draw, in its order, drawn when it is first asked for."""
        if draw not in self._draws:
            self._draws[draw] = [], all_combinations(draw)
        drawn, source = self._draws[draw]
        for index in count():
            if index == len(drawn):
                combination = next(source, None)
                if combination is None:
                    return
                drawn.append(combination)
            yield drawn[index]


@dataclass(frozen=True, slots=True)
class StepContext:
    """What every step of a run works with."""

    experiment: Experiment
    catalog: Catalog
    run: Run
    journal: JournalWriter
    purse: Budget
    progress: RunProgress = NO_PROGRESS
    draws: SharedDraws = field(default_factory=SharedDraws)


@dataclass(frozen=True, slots=True)
class Calls:
    """Whose calls a step makes."""

    step: str
    students: tuple[str, ...]
    """None of them in a grading step: texts that are not there yet are not its to write."""
    graders: tuple[str, ...]

    def models(self, experiment: Experiment) -> dict[str, Settings]:
        """The models that are asked, by the names that tasks use."""
        for name in self.students:
            require_trained(experiment, name)
        return settings_by_model(experiment, self.students, self.graders)


def calls_of(step: Step) -> Calls:
    """The students and graders that a step asks."""
    return Calls(step.name, tuple(dict.fromkeys(step.student_names)), step.grader_names)


def conversations_of(calls: Calls, place: StepContext) -> Conversations:
    """The maker of a step's requests."""
    experiment = place.experiment
    names = {experiment.prompts, *(s.prompts or experiment.prompts for s in experiment.students.values())}
    prompts = {name: load_prompts(name) for name in names}
    return Conversations(experiment, place.catalog, prompts, graders=calls.graders)


async def make_calls(calls: Calls, cells: Sequence[PlannedCell], place: StepContext, tally: CallCounts) -> None:
    """Make whatever is missing of the cells' conversations."""
    conversations = conversations_of(calls, place)
    for cell in cells:
        place.journal.add_combinations(cell.combinations)
    used = calls.models(place.experiment)
    async with watched(place.progress, calls.step, tally):
        for group in passes(used):
            found = tally.found
            wanted = [cell for cell in cells if group.students is None or cell.student in group.students]
            source = first_turns(wanted, conversations, place.journal, tally)
            await serve({name: used[name] for name in group.models}, source, conversations, place, tally)
            tally.found = found if group.is_repeated else tally.found
            if tally.stopped:
                break
    if calls.students:
        tally.left_out = 0  # of one pass, and made in another


@dataclass(frozen=True, slots=True)
class Pass:
    """Models that are open together: all that are elsewhere, and at most one that is in this process.

    That one may be several students, who differ in their prompts or in how they draw: it is loaded once for all.
    """

    models: tuple[str, ...]
    students: frozenset[str] | None = None
    """Only the conversations of these students."""
    is_repeated: bool = False
    """Whether it walks through what an earlier pass has counted."""


def passes(used: Mapping[str, Settings]) -> list[Pass]:
    """Who is open when: each local model alone, its memory given back before the next."""
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


_Loaded = tuple[str, int | None]


def _loaded(settings: Settings) -> _Loaded:
    """What tells two models in this process apart, however they are asked."""
    return str(settings.asked), settings.concurrency


async def serve(
    used: Mapping[str, Settings],
    source: Iterator[Task | None],
    conversations: Conversations,
    place: StepContext,
    tally: CallCounts,
) -> None:
    """Open models, and work through a source of first turns."""
    async with AsyncExitStack() as opened:
        models = await opened_models(used, opened)
        is_local = any(provider_of(str(settings.asked)).is_in_process for settings in used.values())
        most_open = _MOST_OPEN_LOCALLY if is_local else _MOST_OPEN
        scheduler = Scheduler(models, place.journal, purse=place.purse, most_open=most_open)
        scheduler.tally = tally
        scheduler.tell = say
        with stopping_on_interrupt(scheduler):
            await scheduler.run(source, conversations.follow)


async def opened_models(used: Mapping[str, Settings], opened: AsyncExitStack) -> dict[str, Model]:
    """The models of a step by the names that tasks use; names of one model in this process share it."""
    models: dict[str, Model] = {}
    in_process: dict[_Loaded, Model] = {}
    for name, settings in used.items():
        spec = parse_spec(str(settings.asked))
        model = in_process.get(_loaded(settings))
        if model is None:
            access = Access(settings.key, settings.insecure)
            model = open_model(spec, ModelOptions(settings.concurrency, settings.timeout, access))
            opened.push_async_callback(model.close)
        if provider_of(spec).is_in_process:
            in_process[_loaded(settings)] = model
        models[name] = model
    return models


def first_turns(
    cells: Sequence[PlannedCell], conversations: Conversations, journal: JournalWriter, tally: CallCounts
) -> Iterator[Task]:
    """One first turn for each conversation that is not over; settings share those they have in common.

    What is plainly unfinished comes first, so that a long run goes on at once. A conversation with all its calls is
    looked at for votes that cannot be read; the first of each cell is walked through in full, where a changed setting
    shows.
    """
    whole = TURNS + conversations.votes_wanted()
    done = {student: journal.calls_by_conversation(student) for student in {cell.student for cell in cells}}
    later: list[tuple[PlannedCell, Combination, int]] = []
    seen: set[tuple[str, str, int]] = set()
    for cell in cells:
        for place, (combination, generation) in enumerate(product(cell.combinations, cell.numbers)):
            conversation = (cell.student, combination.id, generation)
            if conversation in seen:
                continue
            seen.add(conversation)
            if place > 0 and done[cell.student].get((combination.id, generation), 0) >= whole:
                later.append((cell, combination, generation))
            else:
                yield conversations.first(cell.student, combination, generation)
    for cell, combination, generation in later:
        calls = journal.conversation(cell.student, combination.id, generation)
        if conversations.is_settled(combination, calls):
            tally.found += len(calls)
        else:
            yield conversations.first(cell.student, combination, generation)
