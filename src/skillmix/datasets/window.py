"""Write the conversations for a dataset step.

Conversations begin in draw order, at most a window ahead of the first undecided conversation, and texts are accepted in
draw order until the target is met. The window depends only on decided conversations, so neither the data set nor the
set of conversations depends on the speed of models.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from math import ceil
from typing import Final, NamedTuple

from skillmix.calls import CallKey, CallProblem, Outcome, Request
from skillmix.catalog.combinations import Combination, Draw, all_combinations
from skillmix.datasets.build import kept_text, kind_of, written_with
from skillmix.datasets.card import LeftOut, SamplingYield
from skillmix.datasets.copies import CopyFound, KeptText, TextsSoFar
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.decisions import Decisions
from skillmix.experiment.plan import PlannedCell, place_of
from skillmix.experiment.step_base import student_name
from skillmix.experiment.steps import DatasetStep
from skillmix.render import duration
from skillmix.runs.budget import Task
from skillmix.runs.calling import Calls, FirstTurns, StepContext, conversations_of, make_calls, passes, serve
from skillmix.runs.progress import Bound, say, watched
from skillmix.runs.scheduler import CallCounts, Scheduler, StopReason
from skillmix.scores.planned_work import calls_a_conversation

_FEWEST_AHEAD: Final = 8
"""The minimum size of the first window."""
_TRIES_FOR_A_FLOOR: Final = 100
"""A skill's floor is waived after this many conversations for each text that the floor requires."""
_SEARCH: Final = 20_000
"""The search ends after this many consecutive candidates that do not fit."""
_BEGUN_AT_ONCE: Final = 512
_READ_AT_ONCE: Final = 32
"""The number of conversations to read and grade by code before control returns to the event loop."""
_LOOK_EVERY_S: Final = 0.1
_MOST_EXAMPLES: Final = 5


class Candidate(NamedTuple):
    """A conversation that may be written."""

    combination: Combination
    generation: int

    @property
    def key(self) -> "ConversationKey":
        """Return the combination's id and the sample number."""
        return self.combination.id, self.generation


ConversationKey = tuple[str, int]


def candidates(combinations: Iterable[Combination], *, generations: int = 1) -> Iterator[Candidate]:
    """Yield every combination `generations` times, and then repeat the sequence endlessly with new sample numbers."""
    drawn: list[Combination] = []
    for combination in combinations:
        drawn.append(combination)
        yield from (Candidate(combination, number) for number in range(generations))
    for turn in count(1) if drawn else ():
        for combination in drawn:
            yield from (Candidate(combination, turn * generations + number) for number in range(generations))


@dataclass(frozen=True, slots=True)
class Target:
    """The number of texts to keep for one k, and the limits on writing and choosing them."""

    kept: int
    most: int
    """The maximum number of conversations to write."""
    floor: int = 0
    ceiling: int | None = None
    skills: tuple[str, ...] = ()
    """All skills in the candidates; the floor applies to each skill."""


class Decided(NamedTuple):
    """The graders' and filters' decision about one conversation."""

    kind: str
    """The kind as in `kind_of`, or 'refused'."""
    kept: KeptText | None = None
    shows: str | None = None
    """The reason to exclude the text because of skills that it shows; None if it may stay."""


class Window:
    """The conversations for one k, and the texts chosen from them, which depend only on decided conversations."""

    def __init__(self, source: Iterator[Candidate], target: Target, *, k: int = 1) -> None:
        self.k = k
        self.target = target
        self.begun: list[Candidate] = []
        """The conversations to write, in draw order."""
        self.given = 0
        """The number of these conversations that were passed to the models."""
        self.accepted: list[bool] = []
        """For each decided conversation, whether its text passes the filters."""
        self.taken: list[int] = []
        """The indexes of the begun conversations whose texts were taken."""
        self.texts: dict[int, int] = {}
        """Maps the index of each begun conversation with an accepted text to the number of the text in `TextsSoFar`."""
        self.full_marks = 0
        self._source = source
        self._skipped = 0
        """The number of consecutive candidates so far that did not fit."""
        self._counts: Counter[str] = Counter()
        """The number of taken texts by skill."""
        self._tries: Counter[str] = Counter()
        self._passed: Counter[str] = Counter()
        self._given_up: frozenset[str] = frozenset()
        """Skills that stayed below their floor in many conversations; their floor no longer counts."""
        self._extend()

    @property
    def missing(self) -> int:
        """Return how many more texts are needed to meet the target."""
        return self.target.kept - len(self.taken)

    @property
    def is_over(self) -> bool:
        """Return whether the target is met or no more conversations may be written."""
        return self.missing <= 0 or len(self.accepted) == len(self.begun)

    @property
    def more(self) -> int:
        """Estimate how many more conversations are needed; before any text is chosen, return the limit."""
        room = self.target.most - len(self.accepted)
        if not self.taken or self.missing <= 0:
            return room if self.missing > 0 else 0
        return min(room, ceil(self.missing * len(self.accepted) / len(self.taken)))

    @property
    def below_floor(self) -> dict[str, int]:
        """Return skills with fewer chosen texts than the floor, with their counts."""
        floor = self.target.floor
        return {skill: self._counts[skill] for skill in self.target.skills if self._counts[skill] < floor}

    def decide(self, *, is_accepted: bool) -> None:
        """Record the decision about the first undecided conversation, and extend the window."""
        self.accepted.append(is_accepted)
        if is_accepted:
            self._take(len(self.accepted) - 1)
        if floor := self.target.floor:
            skills = self.begun[len(self.accepted) - 1].combination.skills
            self._tries.update(skills)
            self._passed.update(skills if is_accepted else ())
            enough = _TRIES_FOR_A_FLOOR * floor
            gone = {skill for skill in skills if self._tries[skill] >= enough and self._passed[skill] < floor}
            self.give_up_floors(self._given_up.difference(skills) | gone)
        self._extend()

    def end(self) -> None:
        """Drop the conversations that were not passed to the models yet, and begin no others."""
        del self.begun[self.given :]
        self._source = iter(())

    def give_up_floors(self, skills: frozenset[str]) -> None:
        """Waive the floors of these skills; if the set of skills has changed, choose again among all accepted texts."""
        if skills != self._given_up and self.target.floor:
            self._given_up = skills
            self._counts.clear()
            self.taken.clear()
            for place, is_accepted in enumerate(self.accepted):
                if is_accepted:
                    self._take(place)

    def _take(self, place: int) -> None:
        skills = self.begun[place].combination.skills
        if self.missing > 0 and self._fits(skills):
            self._counts.update(skills)
            self.taken.append(place)

    def _fits(self, skills: Sequence[str]) -> bool:
        """Return whether no skill is at its ceiling and enough missing texts remain for skills below their floor."""
        floor, ceiling = self.target.floor, self.target.ceiling
        if ceiling is not None and any(self._counts[skill] >= ceiling for skill in skills):
            return False
        below = self.below_floor if floor else {}
        lacking = {skill: floor - number for skill, number in below.items() if skill not in self._given_up}
        return self.missing > ceil(sum(lacking.values()) / len(skills)) or not lacking.keys().isdisjoint(skills)

    def _extend(self) -> None:
        """Extend the window to as many candidates as the missing texts probably require.

        While few conversations are decided, the yield is a guess. The window is therefore no larger than the number of
        decided conversations, except that it has room for one conversation per missing text.
        """
        decided, taken, missing = len(self.accepted), len(self.taken), self.missing
        if missing <= 0:
            return
        known = max(_FEWEST_AHEAD, decided)
        size = max(missing, min(known, ceil(missing * decided / taken)) if taken else known)
        while len(self.begun) < min(self.target.most, decided + size) and self._skipped < _SEARCH:
            candidate = next(self._source, None)
            if candidate is None:
                return
            self._skipped += 1
            if self._fits(candidate.combination.skills):
                self.begun.append(candidate)
                self._skipped = 0


class DatasetWriting:
    """Writes the conversations for one dataset step, and chooses texts from them."""

    def __init__(self, step: DatasetStep, context: StepContext, plan: DatasetPlan, counts: CallCounts) -> None:
        self.step = step
        self.plan = plan
        self.counts = counts
        self.yields: list[SamplingYield] = []
        self.texts = TextsSoFar(plan.removals)
        """The taken texts, by k and in draw order; for a k that is still open, all texts that are not copies."""
        self.is_broken = False
        """Whether the data set cannot be made because failed calls left a k unfinished."""
        self._writer = student_name(str(step.writer))
        self.calls = Calls(step.name, (self._writer,), tuple(step.graders))
        self._prompts, self._run_name = written_with(context.experiment), context.run.name
        self._context = context
        self._kinds: Counter[str] = Counter()
        """The conversations of all k by kind, up to the last one that was needed."""
        self._removed: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._examples: list[CopyFound] = []
        self._windows: list[Window] = []
        self._started = time.monotonic()
        self._scheduler: Scheduler | None = None
        self._calls_open: dict[ConversationKey, int] = {}
        self._failures_seen = 0
        self._repeated: set[ConversationKey] = set()
        """Conversations with a failed call that the next run will retry."""
        self._ended: list[ConversationKey] = []
        """Conversations without open calls that have not been read yet."""
        self._decided: dict[ConversationKey, Decided] = {}
        """Decisions on conversations; each waits until all earlier ones are decided."""
        self._next_look = 0.0

    @property
    def left(self) -> LeftOut:
        """Return the excluded texts, up to the last needed conversation."""
        kinds = self._kinds
        return LeftOut(
            undecided=kinds["undecided"],
            unfinished=kinds["unfinished"] + kinds["refused"],
            less=kinds["less"] + kinds["no turns"],
            removed=dict(self._removed),
            shown=dict(self._shown),
            examples=tuple(self._examples),
        )

    def first_cells(self) -> Iterator[PlannedCell]:
        """Yield a cell with the first conversation for each k; skip a k without allowed combinations."""
        for k in self.plan.recipe.ks:
            yield from self._cells(k, list(islice(self._candidates(k), 1)))

    async def run(self) -> None:
        """Write until the targets are met, the limit is reached or the run must stop."""
        context, step = self._context, self.step
        used = self.calls.models(context.experiment)
        for k in self.plan.recipe.ks:
            per_skill, skills = step.per_skill, self._draw(k).side.skills
            target = Target(step.target_of(k), step.max_conversations(k), per_skill.floor, per_skill.ceiling, skills)
            self._windows.append(Window(self._candidates(k), target, k=k))
        with Decisions(context.run, graders=step.graders, rules=step.rules) as decisions:
            if len(passes(used)) > 1:  # load each local model once for all conversations that can begin
                is_new = True
                while is_new and not self.counts.stopped:
                    given = list(iter(self._begin, None))
                    if cells := [cell for k, some in given for cell in self._cells(k, some)]:
                        await make_calls(self.calls, cells, context, self.counts)
                    self._ended += [candidate.key for _, some in given for candidate in some]
                    while self._read(decisions):
                        pass
                    is_new = self._choose()
            else:
                conversations = conversations_of(self.calls, context)
                turns = FirstTurns(conversations, context.journal, self.counts)
                tasks = self._tasks(turns, decisions, waits_for_all=any(settings.batch for settings in used.values()))

                def follow(request: Request, outcome: Outcome) -> list[Task]:
                    released = list(conversations.follow(request, outcome))
                    self._note_over(request.key, len(released))
                    return released

                async with watched(context.progress, step.name, self.counts):
                    await serve(used, tasks, follow, context, self.counts, partial(setattr, self, "_scheduler"))
            self._end(decisions)

    def _tasks(self, turns: FirstTurns, decisions: Decisions, *, waits_for_all: bool) -> Iterator[Task | None]:
        """Yield the first turns of the conversations in the windows; yield None if none can begin before a call ends.

        With batches, a window is sent as a whole, and the next window begins when all calls of the last one have ended.
        """
        while True:
            in_flight = self._scheduler.in_flight if self._scheduler else 0
            if (given := self._begin()) is not None:
                settled = dict.fromkeys(candidate.key for candidate in given[1])
                for task in turns.of(self._cells(*given)):
                    key = task.request.key.combination, task.request.key.generation
                    del settled[key]
                    self._calls_open[key] = 1
                    if task.request.subject is not None:
                        self._context.journal.add_combinations((task.request.subject.combination,))
                    yield task
                self._ended += settled
            elif in_flight and (waits_for_all or time.monotonic() < self._next_look):
                yield None
            else:
                self._read(decisions)
                if self._ended:
                    yield None
                elif not self._choose():
                    if not in_flight:
                        return
                    yield None

    def _begin(self) -> tuple[int, list[Candidate]] | None:
        """Return the first k that has conversations to begin now, with some of these conversations.

        Every conversation of a window is written, even if the target is met in the meantime, so that the journal does
        not depend on timing. The next k begins early, unless that could spend a limited budget.
        """
        limits = self._context.experiment.budget
        is_limited = limits.max_calls is not None or limits.max_usd is not None
        for window in self._windows[: len(self.yields) + 1] if is_limited else self._windows:
            if some := window.begun[window.given : window.given + _BEGUN_AT_ONCE]:
                window.given += len(some)
                return window.k, some
        return None

    def _note_over(self, call: CallKey, released: int) -> None:
        """Record a finished call and the number of calls that it triggers; a conversation without open calls ends."""
        key = call.combination, call.generation
        self._calls_open[key] += released - 1
        if not self._calls_open[key]:
            del self._calls_open[key]
            self._ended.append(key)

    def _read(self, decisions: Decisions) -> bool:
        """Read some of the ended conversations and their grades; return False if there are none."""
        for call, problem in islice(self.counts.failed.items(), self._failures_seen, None):
            self._failures_seen += 1
            key = call.combination, call.generation
            if problem.kind == "passing":
                self._repeated.add(key)
            if key in self._calls_open:
                self._note_over(call, 0)
        some, self._ended = self._ended[:_READ_AT_ONCE], self._ended[_READ_AT_ONCE:]
        if some:
            self._decided |= {k: one for k, one in self._decide(decisions, some) if k not in self._repeated}
        return bool(some)

    def _decide(
        self, decisions: Decisions, keys: Sequence[ConversationKey]
    ) -> Iterator[tuple[ConversationKey, Decided]]:
        """Read conversations, and yield the decision about each; skip conversations that the next run will continue."""
        for one in decisions.of(self._writer, keys):
            kind, last = kind_of(one), one.conversation.turns[-1].outcome
            if kind == "unfinished" and isinstance(last, CallProblem) and last.kind == "failed":
                kind = "refused"  # a call failed for good, so the conversation is lost
            key, kept, shows = one.conversation.key[1:], None, None
            if kind == "full":
                kept = kept_text(one, self._run_name, self._prompts, tuple(decisions.names))
                shows = self.plan.shown_rule.reason_to_drop(kept)
            if kind != "unfinished":
                yield key, Decided(kind, kept, shows)

    def _choose(self) -> bool:
        """Choose texts in draw order up to the first undecided conversation; return False if no decision is new."""
        if len(self.yields) == len(self._windows):
            return False
        window, start = self._windows[len(self.yields)], time.monotonic()
        known = len(window.accepted)
        new: list[Decided] = []
        for candidate in window.begun[known : window.given]:
            if candidate.key not in self._decided:
                break
            new.append(self._decided.pop(candidate.key))
        added = iter(self.texts.add([one.kept for one in new if one.kept is not None]))
        for place, one in enumerate(new, start=known):
            self._kinds[one.kind] += 1
            window.full_marks += one.kind == "full"
            text = next(added) if one.kept is not None else None
            if isinstance(text, CopyFound):
                self._removed[text.why] += 1
                self._examples += [text] if len(self._examples) < _MOST_EXAMPLES else []
            elif one.shows is not None:
                self._shown[one.shows] += 1
            elif text is not None:
                window.texts[place] = text
            quarters = 4 * len(window.taken) // window.target.kept
            window.decide(is_accepted=place in window.texts)
            if window.is_over:
                break
            if 4 * len(window.taken) // window.target.kept > quarters:
                self._tell(window)
        used = window.begun[known : len(window.accepted)]
        self._context.journal.count_conversations((self._writer, *candidate.key) for candidate in used)
        if window.is_over:
            self._close(window)
        if new or window.is_over:
            self._expect(window)
        end = time.monotonic()
        self._next_look = end + max(_LOOK_EVERY_S, 10 * (end - start))
        return bool(new) or window.is_over

    def _end(self, decisions: Decisions) -> None:
        """Process the remaining conversations; if the budget is spent, end the current k with the texts so far."""
        while self._read(decisions) or self._choose():
            pass
        is_spent = self.counts.stopped is StopReason.BUDGET
        if is_spent and len(self.yields) < len(self._windows):
            window = self._windows[len(self.yields)]
            window.end()
            keys = [candidate.key for candidate in window.begun[len(window.accepted) :]]
            self._ended = [key for key in keys if key not in self._decided]
            while self._read(decisions):
                pass
            self._decided = dict.fromkeys(keys, Decided("unfinished")) | self._decided
            self._choose()
        self.is_broken = len(self.yields) < len(self._windows) and not is_spent
        unneeded = {
            candidate.key
            for window in self._windows[: len(self.yields)]
            for candidate in window.begun[len(window.accepted) :]
        }
        failed = self.counts.failed.items()
        self.counts.failed = {k: problem for k, problem in failed if (k.combination, k.generation) not in unneeded}

    def _close(self, window: Window) -> None:
        """Keep the chosen texts for a finished k; counts include conversations up to the last needed one."""
        target = window.target
        if window.missing > 0:  # no more may be written, so choose texts that were skipped because of a floor
            window.give_up_floors(frozenset(target.skills))
        taken_before = sum(y.taken for y in self.yields)
        self.texts.keep_only([*range(taken_before), *(window.texts[place] for place in window.taken)])
        self.yields.append(
            SamplingYield(
                k=window.k,
                target=target.kept,
                written=len(window.accepted),
                full_marks=window.full_marks,
                taken=len(window.taken),
                below_floor=window.below_floor,
                floor=target.floor,
                ceiling=target.ceiling,
                least=self.step.least,
            )
        )
        self._tell(window)

    def _candidates(self, k: int) -> Iterator[Candidate]:
        bars, rule = self.plan.bars, self.plan.shown_rule
        drawn = all_combinations(self._draw(k))
        allowed = (c for c in drawn if bars.leak_of(c) is None and not rule.forbids(c))
        return candidates(allowed, generations=self.step.generations)

    def _draw(self, k: int) -> Draw:
        return place_of(self.step, self._context.experiment, self._context.catalog).dataset_draw(self.step, k)

    def _cells(self, k: int, some: Sequence[Candidate]) -> list[PlannedCell]:
        """Group candidates by sample number into cells."""
        by_generation: dict[int, list[Combination]] = {}
        for combination, generation in some:
            by_generation.setdefault(generation, []).append(combination)
        return [
            PlannedCell(
                step=self.step.name,
                source=self.step.name,
                student=self._writer,
                graders=tuple(self.step.graders),
                setting="train",
                k=k,
                combinations=combinations,
                generations=1,
                first=number,
            )
            for number, combinations in sorted(by_generation.items())
        ]

    def _expect(self, window: Window) -> None:
        """Estimate the total number of calls from the yield so far; for a later k it is only a lower bound."""
        later = self._windows[self._windows.index(window) + 1 :]
        conversations = sum(len(one.accepted) for one in self._windows) + window.more
        conversations += sum(one.target.kept for one in later)
        calls = conversations * calls_a_conversation(self._context.experiment, self._writer, self.step.graders)
        bound: Bound = "about" if window.taken or window.missing <= 0 else "at most"
        self._context.progress.expect(self.step.name, calls, bound="at least" if later else bound)

    def _tell(self, window: Window) -> None:
        """Print the progress, the yield, and the expected number of conversations that remain."""
        known, taken = len(window.accepted), len(window.taken)
        rate = sum(window.accepted) / known if known else 0.0
        message = f"{self.step.name}, k = {window.k}: {taken} of {window.target.kept} kept, yield {rate:.3f}"
        if not window.is_over and taken:
            message += f", about {window.more} more conversations"
            if self.counts.called:
                share = window.more / sum(len(one.accepted) for one in self._windows)
                left = duration((time.monotonic() - self._started) * share)
                message += f", {self.counts.cost_usd * share:.2f} US dollars, about {left} left"
        say(message)
