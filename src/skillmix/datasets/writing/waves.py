"""Run a dataset step: a writer writes in waves and graders vote until enough texts are kept."""

import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import ceil
from typing import Final

from skillmix.calls import CallKey, CallProblem, Outcome, Request
from skillmix.catalog.combinations import Draw
from skillmix.datasets.build import DatasetPlan, Writers
from skillmix.datasets.counts import LeftOut, SamplingYield
from skillmix.datasets.kept_texts import KeptText
from skillmix.datasets.writing.decided_texts import ConversationKey, DecidedTexts
from skillmix.datasets.writing.draw_ahead import DrawAhead, Fate, StepLedger, key_of
from skillmix.datasets.writing.learning import MOST_EXAMPLES, Learned, LearnedTexts
from skillmix.datasets.writing.lent_conversations import LentConversations
from skillmix.datasets.writing.sampling import Candidates, Drawn, Sampler, Target
from skillmix.datasets.writing.waiting_texts import WaitingTexts
from skillmix.experiment.plan import PlannedCell, place_of
from skillmix.experiment.step_base import student_name
from skillmix.experiment.steps import DatasetStep
from skillmix.models.specs import provider_of
from skillmix.render import duration
from skillmix.runs.budget import Task
from skillmix.runs.calling import (
    Calls,
    FirstTurns,
    StepContext,
    conversations_in,
    conversations_of,
    lend,
    make_calls,
    passes,
    serve,
)
from skillmix.runs.conversations import Conversations
from skillmix.runs.journal.ahead import ConversationsAhead
from skillmix.runs.leases.driving import CallWorkers, LentWork
from skillmix.runs.leases.lease import LentConversation
from skillmix.runs.leases.owner import LeaseOwner
from skillmix.runs.planned_work import calls_a_conversation
from skillmix.runs.progress import Bound, say, watched
from skillmix.runs.reading.decisions import OpenDecisions, decision_rules
from skillmix.runs.scheduler import CallCounts, Scheduler

_FILLING: Final = 1.5
"""Calls in flight for each slot of a local model: a slot that becomes free finds a call that waits."""
_FEW: Final = 64
"""Calls in flight up to which conversations of the next k are begun, if the models have no slots here."""
_FEW_LENT: Final = 4096
"""The same for conversations that workers make: each of them has hundreds."""
_AT_ONCE: Final = 512
"""Candidates drawn ahead at once."""
_FINISHED_AT_ONCE: Final = 5000
"""Conversations of a wave whose decisions are waited for at once."""


@dataclass
class Waves:
    """Writes the conversations of one dataset step, wave by wave."""

    step: DatasetStep
    context: StepContext
    plan: DatasetPlan
    writers: Writers
    counts: CallCounts
    yields: list[SamplingYield] = field(default_factory=list)
    left: LeftOut = field(default_factory=LeftOut)
    is_broken: bool = False
    """Whether calls of a wave failed, so that the next wave cannot be planned."""
    _open: tuple[int, Learned] | None = None
    """The k in progress, and what its waves have brought."""
    _started: float = field(default_factory=time.monotonic)
    _waves: int = 0
    _by_k: dict[int, DrawAhead] = field(default_factory=dict)
    _calls_open: dict[ConversationKey, int] = field(default_factory=dict)
    """By conversation, the number of calls that are not over."""
    _scheduler: Scheduler | LentConversations | None = None
    _is_done: bool = False
    """Whether all waves are over, so that conversations drawn ahead need not go on."""

    @property
    def texts(self) -> Sequence[KeptText]:
        """The texts taken so far, by k and in draw order."""
        return self._learned.taken

    @property
    def _writer(self) -> str:
        return student_name(str(self.step.writer))

    async def run(self) -> None:
        """Write until the targets are met, the limit is reached or the run must stop."""
        with self._decided:
            await self._write()
            self._forget_failures_in_vain()
            if self.counts.stopped and self._open is not None:
                # When the budget is spent, take the texts written so far, in draw order.
                k, learned = self._open
                self._of_k(k).sampler.is_exhausted = True
                self._learn(k, learned)
                self._close(k, learned)
                self.is_broken = False

    def _needed_failures(self) -> dict[CallKey, CallProblem]:
        """The failed calls of conversations that a wave has tried."""
        failed = self.counts.failed.items()
        return {key: problem for key, problem in failed if self._is_tried((key.combination, key.generation))}

    def _is_tried(self, key: ConversationKey) -> bool:
        return any(of_k.is_tried(key) for of_k in self._by_k.values())

    def _forget_failures_in_vain(self) -> None:
        """Count no failed call of a conversation that no wave has tried: the step does not need it."""
        self.counts.failed = self._needed_failures()

    @cached_property
    def _decided(self) -> DecidedTexts:
        rules = decision_rules(self.context.run, graders=self.step.graders, rules=self.step.rules)
        # Checkers take a millisecond for a text, and the thread that decides has the time.
        look = self.plan.shown_rule.reason_to_drop
        opening, ledger = partial(OpenDecisions, rules), StepLedger(self._by_k)
        return DecidedTexts(opening, self._writer, self.writers, ledger=ledger, look=look)

    @cached_property
    def _learned(self) -> LearnedTexts:
        return LearnedTexts(self.plan)

    @cached_property
    def _ahead(self) -> ConversationsAhead:
        return ConversationsAhead(self.context.run.journal)

    @property
    def calls(self) -> Calls:
        """The writer and the graders whose calls the step makes."""
        return Calls(self.step.name, (self._writer,), tuple(self.step.graders))

    def first_cells(self) -> Iterator[PlannedCell]:
        """The first conversation of each k."""
        for k in self.plan.recipe.ks:
            candidates = self._candidates(k)
            if candidates.has(0):  # no combination of this k may be in the set
                yield from self._cells(k, Drawn(candidates, array("q", [0])))

    async def _write(self) -> None:
        calls = self.calls
        used = calls.models(self.context.experiment)
        if len(passes(used)) > 1:
            await self._wave_by_wave(calls)
            return
        # With at most one local model, the model stays in memory from wave to wave.
        work = LentWork(conversations_of(calls, self.context), used, self.context.experiment.workers)
        turns = FirstTurns(work.conversations, self.context.journal, self.counts, may_repeat=False)
        workers = self.context.workers
        why_not = workers.why_not(used) if workers is not None else None
        async with watched(self.context.progress, self.step.name, self.counts):
            if workers is not None and why_not is None:
                await self._write_there(workers, work, turns)
            else:
                if why_not is not None:
                    say(f"{self.step.name}: this process makes the calls, because {why_not}")
                await self._write_here(work, turns)

    async def _write_here(self, work: LentWork, turns: FirstTurns) -> None:
        def begin(scheduler: Scheduler) -> None:
            self._scheduler = scheduler

        tasks, follow = self._tasks(work.conversations, turns), partial(self._follow, work.conversations)
        await serve(work.models, tasks, follow, self.context, self.counts, begin)

    async def _write_there(self, workers: CallWorkers, work: LentWork, turns: FirstTurns) -> None:
        """Let workers make the calls; a conversation is decided when its lease comes back."""
        journal, budget = self.context.journal, self.context.budget
        owner = LeaseOwner((), journal, budget, self.counts, turns.has_calls, leases=work.workers.leases)
        lent = self._scheduler = LentConversations(self._decided, self.counts)
        owner.returned = lent.come_back
        await lend(workers, work, lent.counted(self._wanted(turns)), owner, self.context)

    def _tasks(self, conversations: Conversations, turns: FirstTurns) -> Iterator[Task | None]:
        """The first turns of the conversations that are wanted."""
        for conversation in self._wanted(turns):
            if conversation is None:
                yield None
                continue
            task = conversations.first(*conversation)
            self._calls_open[task.request.key.combination, task.request.key.generation] = 1
            of_k = self._of_k(conversation.combination.k)
            of_k.is_called = of_k.is_called or self.context.journal.find(task.request) is None
            yield task

    def _wanted(self, turns: FirstTurns) -> Iterator[LentConversation | None]:
        """The conversations of each wave that lack calls and, while its texts are written, those ahead of it."""
        for k, wave in self._planned():
            self._ahead.note_tried(conversations_in(self._cells(k, wave)))
            yield from self._begin(k, wave, turns)
            of_k = self._of_k(k)
            of_k.expect(wave)
            while of_k.waiting:
                self._decided.poll()
                ahead = self._drawn_ahead(k)
                if ahead is not None:
                    new = [c for c in conversations_in(self._cells(*ahead)) if not turns.has_calls(*c)]
                    self._ahead.begin(new)
                    yield from self._begin(*ahead, turns)
                elif self._is_over:
                    break  # calls have failed, and their conversations are not over
                else:
                    yield None
        self._is_done = True
        if self._scheduler is not None and self._scheduler.in_flight and self._scheduler.slots and self._is_free:
            self._scheduler.abandon()  # calls in flight now were drawn ahead, in vain; nobody bills them

    @property
    def _is_over(self) -> bool:
        """Whether no call is in flight and no conversation waits for its decision."""
        return not (self._scheduler and self._scheduler.in_flight) and self._decided.is_idle

    def _begin(self, k: int, drawn: Drawn, turns: FirstTurns) -> Iterator[LentConversation]:
        """The conversations of candidates that have not begun, if they lack calls."""
        of_k = self._of_k(k)
        new = of_k.begin(drawn)
        is_lent = isinstance(self._scheduler, LentConversations)
        for conversation in (turns.lacking if is_lent else turns.missing)(self._cells(k, new)):
            # Combinations wait in memory for the next tries, so each is noted when its conversation begins.
            self.context.journal.note_combinations((conversation.combination,))
            of_k.call((conversation.combination.id, conversation.generation))
            yield conversation
        for candidate in of_k.with_fate(new, Fate.BEGUN):
            self._decided.add(key_of(candidate))

    def _follow(self, conversations: Conversations, request: Request, outcome: Outcome) -> list[Task]:
        """The tasks that an outcome releases; a conversation without further tasks is decided."""
        released = [] if self._is_done else list(conversations.follow(request, outcome))
        key = request.key.combination, request.key.generation
        self._calls_open[key] += len(released) - 1
        if not self._calls_open[key]:
            del self._calls_open[key]
            self._decided.add(key)
        return released

    @cached_property
    def _is_free(self) -> bool:
        """Whether no model of the step costs money."""
        used = self.calls.models(self.context.experiment)
        return all(provider_of(str(settings.asked)).is_free for settings in used.values())

    def _of_k(self, k: int) -> DrawAhead:
        if k not in self._by_k:
            sampler = Sampler(self._candidates(k), self._target(k))
            self._by_k[k] = DrawAhead(sampler, WaitingTexts())
        return self._by_k[k]

    def _drawn_ahead(self, k: int) -> tuple[int, Drawn] | None:
        """Candidates to begin now, ahead of the waves that will try them; None if there is no need or no room.

        Conversations that are surely needed cost nothing more. Those that are probably needed are begun only for a
        model in this process, as many as keep its slots filled, and only if no grader costs money; those of a later k
        fill the slots while the last conversations of this k end. A limit of the budget allows neither.
        """
        limits = self.context.experiment.budget
        if self._scheduler is None or limits.max_calls is not None or limits.max_usd is not None:
            return None
        slots = self._scheduler.slots if self._is_free else 0
        few = _FEW if isinstance(self._scheduler, Scheduler) else _FEW_LENT
        room = int(_FILLING * slots or few) - self._scheduler.in_flight
        if room <= 0:
            return None
        ks = self.plan.recipe.ks
        for one in ks[ks.index(k) :]:
            of_k = self._of_k(one)
            need = max(of_k.surely_needed(), of_k.probably_needed() if slots else 0)
            if need > 0 and (drawn := of_k.draw(min(need, room, _AT_ONCE))):
                return one, drawn
        return None

    async def _wave_by_wave(self, calls: Calls) -> None:
        for k, wave in self._planned():
            self._of_k(k).begin(wave)
            await make_calls(calls, self._cells(k, wave), self.context, self.counts)
            if self.counts.stopped:
                return

    def _planned(self) -> Iterator[tuple[int, Drawn]]:
        """The waves of each k; a wave is planned after all calls of the one before."""
        for k in self.plan.recipe.ks:
            sampler = self._of_k(k).sampler
            learned = self._learned.next_k()
            self._open = k, learned
            self._waves = 0
            while wave := sampler.next_wave():
                self._waves += 1
                yield k, wave
                self._learn(k, learned)
                self._expect(k, sampler)
                self._tell(k, sampler)
                if self.is_broken:
                    break
            self._close(k, learned)
            self._open = None
            if self.is_broken:
                return

    def _candidates(self, k: int) -> Candidates:
        bars, rule = self.plan.bars, self.plan.shown_rule
        drawn = self.context.draws.combinations(self._draw(k))
        allowed = (c for c in drawn if bars.leak_of(c) is None and not rule.forbids(c))
        return Candidates(allowed, generations=self.step.generations)

    def _draw(self, k: int) -> Draw:
        return place_of(self.step, self.context.experiment, self.context.catalog).dataset_draw(self.step, k)

    def _target(self, k: int) -> Target:
        return Target(
            kept=self.step.target_of(k),
            most=self.step.max_conversations(k),
            floor=self.step.per_skill.floor,
            ceiling=self.step.per_skill.ceiling,
            skills=self._draw(k).side.skills,
        )

    def _cells(self, k: int, wave: Drawn) -> list[PlannedCell]:
        """Group a wave into cells by generation."""
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
            for number, combinations in wave.by_generation().items()
        ]

    def _learn(self, k: int, learned: Learned) -> None:
        """Collect the outcome of every candidate so far, in draw order, never in order of arrival."""
        of_k = self._of_k(k)
        sampler = of_k.sampler
        wave = sampler.tried[len(learned.accepted) :]
        self._finish(of_k, wave)
        self._learned.learn(wave, of_k, learned)
        is_waiting = any(problem.kind == "passing" for problem in self._needed_failures().values())
        # A conversation that a server refuses for good is lost; every other unfinished one is awaited.
        self.is_broken = learned.unfinished > learned.refused or is_waiting
        sampler.learn(learned.accepted)
        of_k.learn(len(learned.full))

    def _finish(self, of_k: DrawAhead, wave: Drawn) -> None:
        """Have the conversations of a wave decided that are not, ended or not."""
        for start in range(0, len(wave), _FINISHED_AT_ONCE):
            part = of_k.with_fate(wave[start : start + _FINISHED_AT_ONCE], Fate.BEGUN, Fate.CALLED)
            self._decided.finish(map(key_of, part))

    def _close(self, k: int, learned: Learned) -> None:
        sampler = self._of_k(k).sampler
        taken = sampler.taken
        self._learned.take(learned, taken)
        target = sampler.target
        last = taken[-1] if len(taken) == target.kept and taken else len(sampler.tried) - 1
        self.yields.append(
            SamplingYield(
                k=k,
                target=target.kept,
                written=len(sampler.tried),
                full_marks=len(learned.full),
                taken=len(taken),
                waves=self._waves,
                below_floor=sampler.below_floor if not self.is_broken else {},
                floor=target.floor,
                ceiling=target.ceiling,
                least=self.step.least,
            )
        )
        self.left = LeftOut(
            undecided=self.left.undecided + learned.undecided,
            unfinished=self.left.unfinished + learned.unfinished,
            less=self.left.less + learned.less,
            removed=dict(Counter(self.left.removed) + learned.removed.until(last)),
            shown=dict(Counter(self.left.shown) + learned.shown.until(last)),
            examples=(*self.left.examples, *learned.examples)[:MOST_EXAMPLES],
        )

    def _expect(self, k: int, sampler: Sampler) -> None:
        """Estimate the total number of calls from the yield so far; a later k gives only a lower bound."""
        missing = sampler.target.kept - len(sampler.taken)
        room = max(0, sampler.target.most - len(sampler.tried))
        more = min(room, ceil(missing / sampler.yielded) if sampler.yielded else room) if missing > 0 else 0
        ks = self.plan.recipe.ks
        later = ks[ks.index(k) + 1 :]
        conversations = sum(y.written for y in self.yields) + len(sampler.tried) + more
        conversations += sum(self.step.target_of(one) for one in later)
        (writer,) = self.step.student_names
        calls = conversations * calls_a_conversation(self.context.experiment, writer, self.step.graders)
        # Before the first text is kept, only the upper limit is known.
        bound: Bound = "about" if sampler.yielded or missing <= 0 else "at most"
        self.context.progress.expect(self.step.name, calls, bound="at least" if later else bound)

    def _tell(self, k: int, sampler: Sampler) -> None:
        """Print the progress, the yield, and the expected rest."""
        kept, wanted = len(sampler.taken), sampler.target.kept
        rate = sampler.yielded or 0.0
        message = f"{self.step.name}, k = {k}, wave {self._waves}: {kept} of {wanted} kept, yield {rate:.3f}"
        missing = wanted - kept
        if missing > 0 and rate:
            more = min(missing / rate, sampler.target.most - len(sampler.tried))
            message += f", about {more:.0f} more conversations"
            if self.counts.called:
                share = more / max(1, len(sampler.tried) + sum(y.written for y in self.yields))
                seconds = (time.monotonic() - self._started) * share
                message += f", {self.counts.cost_usd * share:.2f} US dollars, about {duration(seconds)} left"
        say(message)
