"""Run a dataset step: a writer writes in waves and graders vote until enough texts are kept."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil

from skillmix.catalog.catalog import Side
from skillmix.catalog.combinations import Draw, training_draw
from skillmix.datasets.build import DatasetPlan, Writers, has_two_turns, kept_texts
from skillmix.datasets.corpus import corpus_of
from skillmix.datasets.counts import LeftOut, SamplingYield
from skillmix.datasets.kept_texts import KeptText
from skillmix.datasets.sampling import Candidate, Candidates, Sampler, Target
from skillmix.experiment.plan import PlannedCell
from skillmix.experiment.step_base import student_name
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
    """Writes the conversations of one dataset step, wave by wave."""

    step: DatasetStep
    context: StepContext
    plan: DatasetPlan
    writers: Writers
    counts: CallCounts
    texts: list[KeptText] = field(default_factory=list)
    """The texts taken so far, by k and in draw order."""
    yields: list[SamplingYield] = field(default_factory=list)
    left: LeftOut = field(default_factory=LeftOut)
    is_broken: bool = False
    """Whether calls of a wave failed, so that the next wave cannot be planned."""
    _open: tuple[int, Sampler] | None = None
    """The k in progress and its sampler."""
    _started: float = field(default_factory=time.monotonic)
    _waves: int = 0

    @property
    def _writer(self) -> str:
        return student_name(str(self.step.writer))

    async def run(self) -> None:
        """Write until the targets are met, the limit is reached or the run must stop."""
        await self._write()
        if self.counts.stopped and self._open is not None:
            # When the budget is spent, take the texts written so far, in draw order.
            k, sampler = self._open
            sampler.is_exhausted = True
            self._close(k, sampler, self._learn(sampler))
            self.is_broken = False

    @property
    def calls(self) -> Calls:
        """The writer and the graders whose calls the step makes."""
        return Calls(self.step.name, (self._writer,), tuple(self.step.graders))

    def first_cells(self) -> Iterator[PlannedCell]:
        """The first conversation of each k."""
        for k in self.plan.recipe.ks:
            with suppress(IndexError):  # no combination of this k may be in the set
                yield from self._cells(k, [self._candidates(k)[0]])

    async def _write(self) -> None:
        calls = self.calls
        used = calls.models(self.context.experiment)
        if len(passes(used)) > 1:
            await self._wave_by_wave(calls)
            return
        # With at most one local model, the model stays in memory from wave to wave.
        conversations = conversations_of(calls, self.context)
        async with watched(self.context.progress, self.step.name, self.counts):
            await serve(used, self._tasks(conversations), conversations, self.context, self.counts)

    def _tasks(self, conversations: Conversations) -> Iterator[Task | None]:
        for cells in self._planned():
            yield from first_turns(cells, conversations, self.context.journal, self.counts)
            yield None

    async def _wave_by_wave(self, calls: Calls) -> None:
        for cells in self._planned():
            await make_calls(calls, cells, self.context, self.counts)
            if self.counts.stopped:
                return

    def _planned(self) -> Iterator[list[PlannedCell]]:
        """The cells of each wave; a wave is planned after all calls of the one before."""
        for k in self.plan.recipe.ks:
            sampler = Sampler(self._candidates(k), self._target(k))
            self._open = k, sampler
            outcome = _Outcome()
            self._waves = 0
            while wave := sampler.next_wave():
                self._waves += 1
                cells = self._cells(k, wave)
                for cell in cells:
                    self.context.journal.add_combinations(cell.combinations)
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
        experiment = self.context.experiment
        pools = self.context.catalog.pools(partition=experiment.partition, exclude=experiment.exclude)
        draw = training_draw(Draw(side=self._side(k), setting="train", k=k, seed=experiment.seed), pools)
        bars, rule = self.plan.bars, self.plan.shown_rule
        drawn = self.context.draws.combinations(draw)
        allowed = (c for c in drawn if bars.leak_of(c) is None and not rule.forbids(c))
        return Candidates(allowed, generations=self.step.generations)

    def _side(self, k: int) -> Side:
        """The train topics with the skills of the train side, or with all skills if the recipe says so for k = 1."""
        experiment, catalog = self.context.experiment, self.context.catalog
        exclude = [*experiment.exclude, *self.step.exclude]
        train = catalog.pool("train", partition=experiment.partition, exclude=exclude)
        if k > 1 or self.plan.recipe.skills == "train":
            return train
        everything = catalog.pool("all", partition=experiment.partition, exclude=exclude)
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
        """Group a wave into cells by generation."""
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
        """Collect the outcome of every candidate so far, in draw order, never in order of arrival."""
        rules = decision_rules(self.context.run, graders=self.step.graders, rules=self.step.rules)
        wanted = {(c.combination.id, c.generation): index for index, c in enumerate(sampler.tried)}
        conversations: list[DecidedConversation | None] = [None] * len(wanted)
        for graded in decided_conversations(rules, students=[self._writer]):
            index = wanted.get((graded.conversation.combination, graded.conversation.generation))
            if index is not None:
                conversations[index] = graded
        outcome = _Outcome(unfinished=sum(g is None or not g.is_over for g in conversations))
        # A conversation that a server refuses for good is lost; every other unfinished one is awaited.
        refused = sum(
            g is not None and not g.is_over and g.conversation.turns[-1].problem == "failed" for g in conversations
        )
        is_waiting = any(problem.kind == "passing" for problem in self.counts.failed.values())
        self.is_broken = outcome.unfinished > refused or is_waiting
        full = [
            (p, g) for p, g in enumerate(conversations) if g is not None and g.is_kept and has_two_turns(g.conversation)
        ]
        with self.context.run.read() as journal:
            outcome.full = kept_texts([g for _, g in full], journal, self.writers, self.step.graders)
        outcome.indices = [index for index, _ in full]
        outcome.undecided = sum(g is not None and g.is_ungraded for g in conversations)
        outcome.less = len(conversations) - len(full) - outcome.undecided - outcome.unfinished
        # Texts are also compared with those taken for smaller k, which come first.
        texts = [kept.text for kept in (*self.texts, *outcome.full)]
        gone = self.plan.removals(corpus_of(texts))
        outcome.removed = {r.text_index - len(self.texts): r.why for r in gone if r.text_index >= len(self.texts)}
        outcome.examples = tuple(
            (r.why, texts[r.text_index], texts[r.copy_of] if r.copy_of is not None else "an example")
            for r in gone
            if r.text_index >= len(self.texts)
        )
        accepted = [False] * len(conversations)
        for number, index in enumerate(outcome.indices):
            if number not in outcome.removed:
                reason = self.plan.shown_rule.reason_to_drop(outcome.full[number])
                accepted[index] = reason is None
                outcome.shown |= {number: reason} if reason else {}
        sampler.learn(accepted)
        return outcome

    def _close(self, k: int, sampler: Sampler, outcome: "_Outcome") -> None:
        taken = sampler.taken
        by_index = dict(zip(outcome.indices, outcome.full, strict=True))
        self.texts += [by_index[index] for index in taken]
        target = sampler.target
        last = taken[-1] if len(taken) == target.kept and taken else len(sampler.tried) - 1
        removed, shown = (
            Counter(why for number, why in reasons.items() if outcome.indices[number] <= last)
            for reasons in (outcome.removed, outcome.shown)
        )
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
            shown=dict(Counter(self.left.shown) + shown),
            examples=(*self.left.examples, *outcome.examples)[:5],
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
        calls = conversations * calls_a_conversation(self.context.experiment, self.step.graders)
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


@dataclass
class _Outcome:
    """The outcome of the conversations of one k so far."""

    full: list[KeptText] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    """Indices of the texts with full marks among all tried."""
    removed: dict[int, str] = field(default_factory=dict)
    """Reasons by index among the texts with full marks."""
    shown: dict[int, str] = field(default_factory=dict)
    """Reasons to drop a text for what it shows, by index among the texts with full marks."""
    examples: tuple[tuple[str, str, str], ...] = ()
    undecided: int = 0
    unfinished: int = 0
    less: int = 0
