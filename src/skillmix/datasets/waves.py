"""Sampling to a target: a writer writes in waves, graders vote, until enough texts are kept."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil

from skillmix.catalog.catalog import Side
from skillmix.catalog.combinations import Draw
from skillmix.datasets.build import DatasetPlan, Writers, has_two_turns, kept_texts
from skillmix.datasets.counts import LeftOut, SamplingYield
from skillmix.datasets.sampling import Candidate, Candidates, Sampler, Target
from skillmix.datasets.texts import KeptText, removals
from skillmix.datasets.words import corpus_of
from skillmix.experiment.plan import PlannedCell
from skillmix.experiment.sections import student_name
from skillmix.experiment.steps import DatasetStep
from skillmix.render.numbers import duration
from skillmix.runs.budget import Task
from skillmix.runs.calling import Calls, StepContext, conversations_of, first_turns, make_calls, passes, serve
from skillmix.runs.conversations import Conversations
from skillmix.runs.planned_work import calls_a_conversation
from skillmix.runs.progress.progress import watched
from skillmix.runs.progress.terminal import say
from skillmix.runs.progress.time_left import Bound
from skillmix.runs.reading.decisions import DecidedConversation, decided_conversations, decision_rules
from skillmix.runs.scheduler import CallCounts


@dataclass
class Waves:
    """The waves of one dataset step."""

    step: DatasetStep
    place: StepContext
    plan: DatasetPlan
    writers: Writers
    tally: CallCounts
    texts: list[KeptText] = field(default_factory=list)
    """Taken, k by k, in draw order."""
    yields: list[SamplingYield] = field(default_factory=list)
    left: LeftOut = field(default_factory=LeftOut)
    is_broken: bool = False
    """Whether calls of a wave failed, so that the next one cannot be planned."""
    _open: tuple[int, Sampler] | None = None
    """What is being sampled."""
    _started: float = field(default_factory=time.monotonic)
    _waves: int = 0

    @property
    def _writer(self) -> str:
        return student_name(str(self.step.writer))

    async def run(self) -> None:
        """Write until the targets are met, no more may be written, or the run must stop."""
        await self._write()
        if self.tally.stopped and self._open is not None:
            # What there is when the budget is spent: as far as it goes, in draw order.
            k, sampler = self._open
            sampler.is_exhausted = True
            self._close(k, sampler, self._learn(sampler))
            self.is_broken = False

    @property
    def calls(self) -> Calls:
        """Whose calls the step makes."""
        return Calls(self.step.name, (self._writer,), tuple(self.step.graders))

    def first_cells(self) -> Iterator[PlannedCell]:
        """The first conversation of each k."""
        for k in self.plan.recipe.ks:
            with suppress(IndexError):  # nothing that may be in the set can be drawn
                yield from self._cells(k, [self._candidates(k)[0]])

    async def _write(self) -> None:
        calls = self.calls
        used = calls.models(self.place.experiment)
        if len(passes(used)) > 1:
            await self._wave_by_wave(calls)
            return
        # One model in memory at most: it stays there from wave to wave.
        conversations = conversations_of(calls, self.place)
        async with watched(self.place.progress, self.step.name, self.tally):
            await serve(used, self._tasks(conversations), conversations, self.place, self.tally)

    def _tasks(self, conversations: Conversations) -> Iterator[Task | None]:
        for cells in self._planned():
            yield from first_turns(cells, conversations, self.place.journal, self.tally)
            yield None

    async def _wave_by_wave(self, calls: Calls) -> None:
        for cells in self._planned():
            await make_calls(calls, cells, self.place, self.tally)
            if self.tally.stopped:
                return

    def _planned(self) -> Iterator[list[PlannedCell]]:
        """The cells of wave after wave; each is planned when all calls of the one before are over."""
        for k in self.plan.recipe.ks:
            sampler = Sampler(self._candidates(k), self._target(k))
            self._open = k, sampler
            outcome = _Outcome()
            self._waves = 0
            while wave := sampler.next_wave():
                self._waves += 1
                cells = self._cells(k, wave)
                for cell in cells:
                    self.place.journal.add_combinations(cell.combinations)
                yield cells
                outcome = self._learn(sampler)
                self._expect(k, sampler)
                self._tell(k, sampler)
                if self.is_broken:
                    break
            self._close(k, sampler, outcome)
            self._open = None
            if self.is_broken:
                return

    def _candidates(self, k: int) -> Candidates:
        draw = Draw(side=self._side(k), setting="train", k=k, seed=self.place.experiment.seed, purpose="training")
        allowed = (c for c in self.place.draws.combinations(draw) if self.plan.bars.leak_of(c) is None)
        return Candidates(allowed, generations=self.step.generations)

    def _side(self, k: int) -> Side:
        """The train topics, with the skills of the train side or, for k = 1 where the recipe says so, with all."""
        experiment, catalog = self.place.experiment, self.place.catalog
        train = catalog.pool("train", partition=experiment.partition, exclude=experiment.exclude)
        if k > 1 or self.plan.recipe.skills == "train":
            return train
        everything = catalog.pool("all", partition=experiment.partition, exclude=experiment.exclude)
        return replace(train, skills=everything.skills)

    def _target(self, k: int) -> Target:
        return Target(
            kept=self.step.target_of(k),
            most=self.step.max_conversations(k),
            floor=self.step.per_skill.floor,
            ceiling=self.step.per_skill.ceiling,
            skills=self._side(k).skills,
        )

    def _cells(self, k: int, wave: Sequence[Candidate]) -> list[PlannedCell]:
        """A wave as cells, one for each number of a generation."""
        by_number: dict[int, list[Candidate]] = {}
        for candidate in wave:
            by_number.setdefault(candidate.generation, []).append(candidate)
        return [
            PlannedCell(
                step=self.step.name,
                student=self._writer,
                graders=tuple(self.step.graders),
                setting="train",
                k=k,
                combinations=tuple(candidate.combination for candidate in candidates),
                generations=1,
                first=number,
            )
            for number, candidates in sorted(by_number.items())
        ]

    def _learn(self, sampler: Sampler) -> "_Outcome":
        """What became of every candidate so far, in draw order, never in the order of arrival."""
        rules = decision_rules(self.place.run, graders=self.step.graders)
        wanted = {(c.combination.id, c.generation): place for place, c in enumerate(sampler.tried)}
        found: list[DecidedConversation | None] = [None] * len(wanted)
        for graded in decided_conversations(rules, students=[self._writer]):
            place = wanted.get((graded.conversation.combination, graded.conversation.generation))
            if place is not None:
                found[place] = graded
        outcome = _Outcome(unfinished=sum(g is None or not g.is_over for g in found))
        # A request that a server refuses for good is one conversation less; everything else is waited for.
        refused = sum(g is not None and not g.is_over and g.conversation.turns[-1].problem == "failed" for g in found)
        is_waiting = any(problem.kind == "passing" for problem in self.tally.failed.values())
        self.is_broken = outcome.unfinished > refused or is_waiting
        full = [(p, g) for p, g in enumerate(found) if g is not None and g.is_kept and has_two_turns(g.conversation)]
        with self.place.run.read() as journal:
            outcome.full = kept_texts([g for _, g in full], journal, self.writers, self.step.graders)
        outcome.places = [place for place, _ in full]
        outcome.undecided = sum(g is not None and g.is_ungraded for g in found)
        outcome.less = len(found) - len(full) - outcome.undecided - outcome.unfinished
        # Compared with what was taken of smaller k as well, which comes first.
        said = [kept.text for kept in (*self.texts, *outcome.full)]
        gone = removals(corpus_of(said), examples=self.plan.examples, threshold=self.plan.near_duplicates)
        outcome.removed = {r.place - len(self.texts): r.why for r in gone if r.place >= len(self.texts)}
        outcome.examples = tuple(
            (r.why, said[r.place], said[r.of] if r.of is not None else "an example")
            for r in gone
            if r.place >= len(self.texts)
        )
        accepted = [False] * len(found)
        for number, place in enumerate(outcome.places):
            accepted[place] = number not in outcome.removed
        sampler.learn(accepted)
        return outcome

    def _close(self, k: int, sampler: Sampler, outcome: "_Outcome") -> None:
        taken = sampler.taken
        by_place = dict(zip(outcome.places, outcome.full, strict=True))
        self.texts += [by_place[place] for place in taken]
        target = sampler.target
        last = taken[-1] if len(taken) == target.kept and taken else len(sampler.tried) - 1
        removed = Counter(why for number, why in outcome.removed.items() if outcome.places[number] <= last)
        self.yields.append(
            SamplingYield(
                k=k,
                target=target.kept,
                written=len(sampler.tried),
                full_marks=len(outcome.full),
                taken=len(taken),
                waves=self._waves,
                below_floor=sampler.below_floor if not self.is_broken else {},
                floor=target.floor,
                ceiling=target.ceiling,
                least=self.step.least,
            )
        )
        self.left = LeftOut(
            undecided=self.left.undecided + outcome.undecided,
            unfinished=self.left.unfinished + outcome.unfinished,
            less=self.left.less + outcome.less,
            removed=dict(Counter(self.left.removed) + removed),
            examples=(*self.left.examples, *outcome.examples)[:5],
        )

    def _expect(self, k: int, sampler: Sampler) -> None:
        """Tell how many calls there will be, by what was kept so far; a k that has not begun is known only at least."""
        missing = sampler.target.kept - len(sampler.taken)
        room = max(0, sampler.target.most - len(sampler.tried))
        more = min(room, ceil(missing / sampler.yielded) if sampler.yielded else room) if missing > 0 else 0
        ks = self.plan.recipe.ks
        later = ks[ks.index(k) + 1 :]
        conversations = sum(y.written for y in self.yields) + len(sampler.tried) + more
        conversations += sum(self.step.target_of(one) for one in later)
        calls = conversations * calls_a_conversation(self.place.experiment, self.step.graders)
        # Before the first text is kept, only the most that may be written is known.
        bound: Bound = "about" if sampler.yielded or missing <= 0 else "at most"
        self.place.progress.expect(self.step.name, calls, bound="at least" if later else bound)

    def _tell(self, k: int, sampler: Sampler) -> None:
        """How far it is, what it takes, and what is still to come."""
        kept, wanted = len(sampler.taken), sampler.target.kept
        rate = sampler.yielded or 0.0
        told = f"{self.step.name}, k = {k}, wave {self._waves}: {kept} of {wanted} kept, yield {rate:.3f}"
        asked = self.tally.called
        missing = wanted - kept
        if missing > 0 and rate:
            more = min(missing / rate, sampler.target.most - len(sampler.tried))
            told += f", about {more:.0f} more conversations"
            if asked:
                share = more / max(1, len(sampler.tried) + sum(y.written for y in self.yields))
                seconds = (time.monotonic() - self._started) * share
                told += f", {self.tally.cost_usd * share:.2f} US dollars, about {duration(seconds)} left"
        say(told)


@dataclass
class _Outcome:
    """What came of the conversations of one k so far."""

    full: list[KeptText] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Of the full ones, among all tried."""
    removed: dict[int, str] = field(default_factory=dict)
    """By number among the full ones."""
    examples: tuple[tuple[str, str, str], ...] = ()
    undecided: int = 0
    unfinished: int = 0
    less: int = 0
