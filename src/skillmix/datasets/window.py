"""Write the conversations of a dataset step: begin them in draw order, a window ahead, and keep texts in draw order.

A text is kept if it passes the filters and its k still needs texts, judged one after the other in draw order. Arrival
times and the size of the window therefore change neither the kept set nor its counts. The window is the number of
conversations that the missing texts probably take. It is computed from the conversations decided so far, so that the
conversations beyond the last one that was needed do not depend on timing either.
"""

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import ceil, sqrt
from typing import Final, NamedTuple

from skillmix.calls import CallKey, CallProblem, Outcome, Request
from skillmix.catalog.combinations import Combination, Draw
from skillmix.datasets.build import Writers, kept_text, kind_of
from skillmix.datasets.counts import LeftOut, SamplingYield
from skillmix.datasets.dataset_plan import DatasetPlan
from skillmix.datasets.kept_texts import CopyFound, KeptText, TextsSoFar
from skillmix.experiment.plan import PlannedCell, place_of
from skillmix.experiment.step_base import student_name
from skillmix.experiment.steps import DatasetStep
from skillmix.models.specs import provider_of
from skillmix.render import duration
from skillmix.runs.budget import Task
from skillmix.runs.calling import Calls, FirstTurns, StepContext, conversations_of, make_calls, passes, serve
from skillmix.runs.journal.ahead import ConversationsAhead
from skillmix.runs.planned_work import calls_a_conversation
from skillmix.runs.progress import Bound, say, watched
from skillmix.runs.reading.decisions import OpenDecisions, decision_rules
from skillmix.runs.scheduler import CallCounts, Scheduler, StopReason

_FEWEST_AHEAD: Final = 8
"""The window may be this large before the yield is known."""
_TRIES_FOR_A_FLOOR: Final = 100
"""Conversations for each text of the floor after which a skill is given up."""
_SEARCH: Final = 20_000
"""Consecutive candidates without a useful one after which the search ends."""
_BEGUN_AT_ONCE: Final = 512
_DECIDED_AT_ONCE: Final = 32
"""Conversations that are decided before the event loop gets a turn."""
_DECIDE_EVERY_S: Final = 0.1
_MOST_EXAMPLES: Final = 5


class Candidate(NamedTuple):
    """A conversation that may be written."""

    combination: Combination
    generation: int


ConversationKey = tuple[str, int]
"""The combination and the generation of a conversation."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target for one k."""

    kept: int
    most: int
    """The most conversations to write."""
    floor: int = 0
    ceiling: int | None = None
    skills: tuple[str, ...] = ()
    """All skills of the candidates; the floor applies to each."""


class Decided(NamedTuple):
    """What the graders and filters say about one conversation."""

    kind: str
    """As `kind_of` says; `waiting` if calls are missing that the next run makes."""
    kept: KeptText | None = None
    shows: str | None = None
    """Why the text must be left out for what it shows; None if it may stay."""


class Candidates:
    """An endless sequence: every combination `generations` times, then all again with new generations; drawn lazily."""

    def __init__(self, combinations: Iterable[Combination], *, generations: int = 1) -> None:
        self._source = iter(combinations)
        self._drawn: list[Combination] = []
        self._is_whole = False
        self._generations = generations

    def at(self, index: int) -> Candidate | None:
        """The candidate at an index; None if no combination exists."""
        wanted, generation = divmod(index, self._generations)
        while not self._is_whole and len(self._drawn) <= wanted:
            combination = next(self._source, None)
            if combination is None:
                self._is_whole = True
            else:
                self._drawn.append(combination)
        if not self._drawn:
            return None
        turn, number = divmod(wanted, len(self._drawn)) if self._is_whole else (0, wanted)
        return Candidate(self._drawn[number], turn * self._generations + generation)


class Window:
    """Chooses the conversations of one k to begin, and which of their texts to take; it knows only what is decided."""

    def __init__(self, candidates: Candidates, target: Target, *, k: int = 1, has_margin: bool = False) -> None:
        self.k = k
        self.target = target
        self.begun = array("q")
        """The candidates to begin, by their index in the draw."""
        self.accepted = bytearray()
        """For each decided conversation, 1 if its text passes the filters."""
        self.taken = array("q")
        """The places of the taken texts among the begun conversations."""
        self.given = 0
        """How many of the begun conversations were given to the models."""
        self.undecided: dict[int, Decided] = {}
        """What is known of conversations by place; each waits until all earlier ones are decided."""
        self.texts: dict[int, int] = {}
        """The numbers of the accepted texts, by place."""
        self.full_marks = 0
        self.is_called = False
        """Whether a conversation was not in the journal."""
        self._candidates = candidates
        self._has_margin = has_margin
        """Begin some more than the yield calls for, so that few rounds are needed for the last texts."""
        self._next = 0
        self._in_vain = 0
        self._counts: Counter[str] = Counter()
        """The taken texts by skill, if there is a floor or a ceiling."""
        self._tries: Counter[str] = Counter()
        self._passed: Counter[str] = Counter()
        self._given_up: set[str] = set()
        """Skills whose floor does not count any more: they are below it after many conversations."""
        self._short = target.floor * len(target.skills)
        """How many texts of single skills the floors still lack."""
        self._extend()

    def __getitem__(self, place: int) -> Candidate:
        candidate = self._candidates.at(self.begun[place])
        assert candidate is not None  # it was begun
        return candidate

    @property
    def missing(self) -> int:
        """How many texts the target lacks."""
        return self.target.kept - len(self.taken)

    @property
    def is_over(self) -> bool:
        """Whether the target is met, or no further conversation may be written."""
        return self.missing <= 0 or len(self.accepted) == len(self.begun)

    @property
    def surely_needed(self) -> int:
        """How many of the begun conversations are needed however the undecided ones end."""
        return min(len(self.begun), len(self.accepted) + self.missing)

    @property
    def more(self) -> int:
        """About how many more conversations are needed; the most that may be written before a text is taken."""
        if self.missing <= 0:
            return 0
        room = self.target.most - len(self.accepted)
        return min(room, ceil(self.missing * len(self.accepted) / len(self.taken))) if self.taken else room

    @property
    def below_floor(self) -> dict[str, int]:
        """Skills with fewer taken texts than the floor, with their counts."""
        floor = self.target.floor
        return {skill: self._counts[skill] for skill in self.target.skills if self._counts[skill] < floor}

    def decide(self, *, is_accepted: bool) -> None:
        """Decide the first undecided conversation, and begin those that the window now reaches."""
        place, target = len(self.accepted), self.target
        self.accepted.append(is_accepted)
        if is_accepted and self.missing > 0:
            self._take(place)
        if target.floor:
            skills = self[place].combination.skills
            self._tries.update(skills)
            self._passed.update(skills if is_accepted else ())
            enough = _TRIES_FOR_A_FLOOR * target.floor
            gone = {s for s in skills if self._tries[s] >= enough and self._passed[s] < target.floor}
            self._give_up(self._given_up.difference(skills) | gone)
        self._extend()

    def end_at(self, place: int) -> None:
        """Begin no conversations from a place on."""
        del self.begun[place:]
        self._in_vain = _SEARCH

    def give_up_floors(self) -> None:
        """Take every text that was passed over for a floor, since no more conversations may be written."""
        self._give_up(set(self.target.skills))

    def _give_up(self, skills: set[str]) -> None:
        """Take texts again from the first on if the floors that count have changed."""
        if skills == self._given_up or not self.target.floor:
            return
        self._given_up = skills
        self._counts.clear()
        self.taken = array("q")
        self._short = self.target.floor * (len(self.target.skills) - len(skills))
        place = self.accepted.find(1)
        while place >= 0 and self.missing > 0:
            self._take(place)
            place = self.accepted.find(1, place + 1)

    def _take(self, place: int) -> None:
        """Take a text if floors and ceilings allow it."""
        target = self.target
        if target.floor or target.ceiling is not None:
            skills = self[place].combination.skills
            if target.ceiling is not None and any(self._counts[s] >= target.ceiling for s in skills):
                return
            gain = sum(s not in self._given_up and self._counts[s] < target.floor for s in skills)
            if not gain and self.missing - 1 < ceil(self._short / len(skills)):
                return
            self._counts.update(skills)
            self._short -= gain
        self.taken.append(place)

    def _extend(self) -> None:
        """Begin candidates up to the end of the window; each is looked at once, with what is known then."""
        if self.missing <= 0:
            return
        end = min(self.target.most, len(self.accepted) + self._size())
        while len(self.begun) < end and self._in_vain < _SEARCH:
            candidate = self._candidates.at(self._next)
            if candidate is None:
                return
            if self._is_useful(candidate.combination.skills):
                self.begun.append(self._next)
                self._in_vain = 0
            else:
                self._in_vain += 1
            self._next += 1

    def _size(self) -> int:
        """How many conversations the missing texts probably take, but not many times those that are decided."""
        known, taken, missing = len(self.accepted), len(self.taken), self.missing
        most = max(_FEWEST_AHEAD, known)
        if not taken:
            return max(missing, most)
        margin = sqrt(missing * (1 - taken / known)) * known / taken if self._has_margin else 0
        return max(missing, min(most, ceil(missing * known / taken + margin)))

    def _is_useful(self, skills: Sequence[str]) -> bool:
        """Whether no skill is at its ceiling, and the text would help if all missing ones are needed for floors."""
        target = self.target
        if target.ceiling is not None and any(self._counts[s] >= target.ceiling for s in skills):
            return False
        if not target.floor or not self._short or self.missing > ceil(self._short / len(skills)):
            return True
        return any(s not in self._given_up and self._counts[s] < target.floor for s in skills)


class DatasetWriting:
    """Writes the conversations of one dataset step, and takes texts from them."""

    def __init__(
        self, step: DatasetStep, context: StepContext, plan: DatasetPlan, writers: Writers, counts: CallCounts
    ) -> None:
        self.step = step
        self.plan = plan
        self.counts = counts
        self.yields: list[SamplingYield] = []
        self._kinds: Counter[str] = Counter()
        """The conversations of all k by kind, up to the last one that was needed."""
        self._removed: Counter[str] = Counter()
        self._shown: Counter[str] = Counter()
        self._examples: list[CopyFound] = []
        self.is_broken = False
        """Whether calls failed without which texts cannot be chosen."""
        self._writer = student_name(str(step.writer))
        self.calls = Calls(step.name, (self._writer,), tuple(step.graders))
        self._writers = writers
        self._context = context
        limits = context.experiment.budget
        self._is_limited = limits.max_calls is not None or limits.max_usd is not None
        self._windows: list[Window] = []
        self._texts = TextsSoFar(plan.removals)
        self._started = time.monotonic()
        self._scheduler: Scheduler | None = None
        self._calls_open: dict[ConversationKey, int] = {}
        self._failures_seen = 0
        self._passing: set[ConversationKey] = set()
        """Conversations with a call that failed and that the next run makes again."""
        self._places: dict[ConversationKey, tuple[Window, int]] = {}
        """Conversations that were given to the models and have no decision."""
        self._ended: list[ConversationKey] = []
        self._next_look = 0.0
        self._opened = ExitStack()
        self._decisions: OpenDecisions | None = None
        self._ahead = ConversationsAhead(context.run.journal)

    @property
    def texts(self) -> Sequence[KeptText]:
        """The taken texts, by k and in draw order."""
        return self._texts.texts

    @property
    def left(self) -> LeftOut:
        """The texts that were left out, up to the last conversation that was needed."""
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
        """The first conversation of each k."""
        for k in self.plan.recipe.ks:
            first = self._candidates(k).at(0)
            if first is not None:  # no combination of this k may be in the set
                yield from self._cells(k, [first])

    async def run(self) -> None:
        """Write until the targets are met, the limit is reached or the run must stop."""
        context, step = self._context, self.step
        used = self.calls.models(context.experiment)
        is_free = all(provider_of(str(settings.asked)).is_free for settings in used.values())
        for k in self.plan.recipe.ks:
            skills, per_skill = self._draw(k).side.skills, step.per_skill
            target = Target(step.target_of(k), step.max_conversations(k), per_skill.floor, per_skill.ceiling, skills)
            has_margin = is_free and not self._is_limited
            self._windows.append(Window(self._candidates(k), target, k=k, has_margin=has_margin))
        with self._opened:
            if len(passes(used)) > 1:
                await self._write_in_rounds()
            else:
                conversations = conversations_of(self.calls, context)
                turns = FirstTurns(conversations, context.journal, self.counts)
                tasks = self._tasks(turns, waits_for_all=any(settings.batch for settings in used.values()))

                def follow(request: Request, outcome: Outcome) -> list[Task]:
                    released = list(conversations.follow(request, outcome))
                    self._note_over(request.key, len(released))
                    return released

                async with watched(context.progress, step.name, self.counts):
                    await serve(used, tasks, follow, context, self.counts, partial(setattr, self, "_scheduler"))
            self._end()

    def _tasks(self, turns: FirstTurns, *, waits_for_all: bool) -> Iterator[Task | None]:
        """The first turns of the conversations in the windows; None while nothing can begin until a call is over.

        With batches, one window is sent as a whole: the next begins when all its calls are over.
        """
        while True:
            in_flight = self._scheduler.in_flight if self._scheduler else 0
            if (given := self._give()) is not None:
                window, candidates = given
                whole = dict.fromkeys(map(_key_of, candidates))
                for task in turns.of(self._cells(window.k, candidates)):
                    key = task.request.key.combination, task.request.key.generation
                    del whole[key]
                    self._calls_open[key] = 1
                    window.is_called = window.is_called or self._context.journal.find(task.request) is None
                    if task.request.subject is not None:
                        self._context.journal.note_combinations((task.request.subject.combination,))
                    yield task
                self._ended += whole  # the journal has all their calls
            elif in_flight and (waits_for_all or time.monotonic() < self._next_look):
                yield None
            else:
                self._decide_some()
                if self._ended or not self._learn():
                    if not in_flight and not self._ended:
                        return
                    yield None

    async def _write_in_rounds(self) -> None:
        """Write with several local models, of which each is loaded for all conversations that can begin."""
        while not self.counts.stopped:
            parts = list(iter(self._give, None))
            if parts:
                called = self.counts.called
                cells = [cell for window, candidates in parts for cell in self._cells(window.k, candidates)]
                await make_calls(self.calls, cells, self._context, self.counts)
                for window, _ in parts:
                    window.is_called = window.is_called or self.counts.called > called
                self._ended = list(self._places)
                while self._decide_some():
                    pass
            elif not self._learn():
                return

    def _give(self) -> tuple[Window, list[Candidate]] | None:
        """Some conversations to begin now, of the first k that has any.

        While the journal has them, only those that are surely needed begin: it may have all others that count. Then
        every conversation of the window is written, even if the target is met meanwhile, so that the journal does not
        depend on timing.
        """
        until = len(self.yields) + 1 if self._is_limited else len(self._windows)
        for window in self._windows[:until]:
            end = len(window.begun) if window.is_called else window.surely_needed
            if window.given < end:
                places = range(window.given, min(end, window.given + _BEGUN_AT_ONCE))
                candidates = [window[place] for place in places]
                self._places |= {_key_of(c): (window, p) for c, p in zip(candidates, places, strict=True)}
                window.given = places.stop
                return window, candidates
        return None

    def _note_over(self, call: CallKey, released: int) -> None:
        """Note that a call is over and releases others; a conversation without further calls has ended."""
        key = call.combination, call.generation
        self._calls_open[key] += released - 1
        if not self._calls_open[key]:
            del self._calls_open[key]
            self._ended.append(key)

    def _decide_some(self) -> bool:
        """Decide conversations that have ended; False if there are none."""
        for key, problem in islice(self.counts.failed.items(), self._failures_seen, None):
            self._failures_seen += 1
            if problem.kind == "passing":
                self._passing.add((key.combination, key.generation))
            if (key.combination, key.generation) in self._calls_open:
                self._note_over(key, 0)
        some, self._ended = self._ended[:_DECIDED_AT_ONCE], self._ended[_DECIDED_AT_ONCE:]
        for conversation, decided in self._decide(some) if some else ():
            window, place = self._places.pop(conversation)
            is_waiting = conversation in self._passing or decided.kind == "unfinished"
            window.undecided[place] = Decided("waiting") if is_waiting else decided
        return bool(some)

    def _decide(self, keys: Sequence[ConversationKey]) -> list[tuple[ConversationKey, Decided]]:
        """Read conversations, and let graders' replies, checkers and what texts show decide them."""
        if self._decisions is None:
            rules = decision_rules(self._context.run, graders=self.step.graders, rules=self.step.rules)
            self._decisions = self._opened.enter_context(OpenDecisions(rules))
        found = dict.fromkeys(keys, Decided("unfinished"))
        graders = tuple(self._decisions.names)
        for one in self._decisions.of(self._writer, keys):
            kind = kind_of(one)
            kept = kept_text(one, self._writers, graders) if kind == "full" else None
            last = one.conversation.turns[-1].outcome
            if kind == "unfinished" and isinstance(last, CallProblem) and last.kind == "failed":
                kind = "refused"  # for good, so that the conversation is lost
            shows = self.plan.shown_rule.reason_to_drop(kept) if kept is not None else None
            found[one.conversation.key[1:]] = Decided(kind, kept, shows)
        return list(found.items())

    def _learn(self) -> bool:
        """Choose texts in draw order as far as conversations are decided; return False if nothing is new."""
        if len(self.yields) == len(self._windows):
            return False
        window, start = self._windows[len(self.yields)], time.monotonic()
        known = len(window.accepted)
        new: list[Decided] = []
        while (one := window.undecided.get(known + len(new))) is not None and one.kind != "waiting":
            new.append(one)
        added = iter(self._texts.add([one.kept for one in new if one.kept is not None]))
        for place, one in enumerate(new, start=known):
            del window.undecided[place]
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
        if self._ahead.untried:  # an earlier version began them without counting them
            self._ahead.note_tried(
                (self._writer, *_key_of(window[place])) for place in range(known, len(window.accepted))
            )
        if window.is_over:
            self._close(window)
        if new or window.is_over:
            self._expect(window)
        end = time.monotonic()
        self._next_look = end + max(_DECIDE_EVERY_S, 10 * (end - start))
        return bool(new) or window.is_over

    def _end(self) -> None:
        """Take what is there if the budget is spent; otherwise an open k lacks calls."""
        while self._decide_some() or self._learn():
            pass
        is_spent = self.counts.stopped is StopReason.BUDGET
        if is_spent and len(self.yields) < len(self._windows):
            window = self._windows[len(self.yields)]
            self._ended = [key for key, (own, _) in self._places.items() if own is window]
            while self._decide_some():
                pass
            window.undecided |= {
                place: Decided("unfinished") for place, one in window.undecided.items() if one.kind == "waiting"
            }
            window.end_at(window.given)
            self._learn()
        self.is_broken = len(self.yields) < len(self._windows) and not is_spent
        unneeded = {
            _key_of(window[place])
            for window in self._windows[: len(self.yields)]
            for place in range(len(window.accepted), window.given)
        }
        failed = self.counts.failed.items()
        self.counts.failed = {k: problem for k, problem in failed if (k.combination, k.generation) not in unneeded}

    def _close(self, window: Window) -> None:
        """Take the texts of a k that is over; everything is counted up to the last conversation that was needed."""
        target = window.target
        if window.missing > 0:
            window.give_up_floors()
        taken_before = sum(y.taken for y in self.yields)
        self._texts.keep_only([*range(taken_before), *(window.texts[place] for place in window.taken)])
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

    def _candidates(self, k: int) -> Candidates:
        bars, rule = self.plan.bars, self.plan.shown_rule
        drawn = self._context.draws.combinations(self._draw(k))
        allowed = (c for c in drawn if bars.leak_of(c) is None and not rule.forbids(c))
        return Candidates(allowed, generations=self.step.generations)

    def _draw(self, k: int) -> Draw:
        return place_of(self.step, self._context.experiment, self._context.catalog).dataset_draw(self.step, k)

    def _cells(self, k: int, candidates: Sequence[Candidate]) -> list[PlannedCell]:
        """Group candidates into cells by generation."""
        by_generation: dict[int, list[Combination]] = {}
        for combination, generation in candidates:
            by_generation.setdefault(generation, []).append(combination)
        return [
            PlannedCell(
                step=self.step.name,
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
        """Estimate the total number of calls from the yield so far; a later k gives only a lower bound."""
        later = self._windows[self._windows.index(window) + 1 :]
        conversations = sum(len(one.accepted) for one in self._windows) + window.more
        conversations += sum(one.target.kept for one in later)
        calls = conversations * calls_a_conversation(self._context.experiment, self._writer, self.step.graders)
        bound: Bound = "about" if window.taken or window.missing <= 0 else "at most"
        self._context.progress.expect(self.step.name, calls, bound="at least" if later else bound)

    def _tell(self, window: Window) -> None:
        """Print the progress, the yield, and what is expected to be left."""
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


def _key_of(candidate: Candidate) -> ConversationKey:
    return candidate.combination.id, candidate.generation
