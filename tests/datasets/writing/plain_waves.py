"""The waves of a dataset step written down plainly: lists in memory, and every wave looks at everything again."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from math import ceil

from skillmix.calls import CallProblem
from skillmix.datasets.corpus import Corpus, corpus_of
from skillmix.datasets.counts import LeftOut, SamplingYield
from skillmix.datasets.kept_texts import KeptText, Removal
from skillmix.datasets.writing.decided_texts import ConversationKey, DecidedText
from skillmix.datasets.writing.sampling import Candidate, Candidates, Target
from skillmix.runs.reading.decisions import DecidedConversation


def plainly_taken(tried: Sequence[Candidate], accepted: Sequence[bool], target: Target, gone: set[str]) -> list[int]:
    """The places of the taken texts."""
    taken: list[int] = []
    counts: Counter[str] = Counter()
    floors = set(target.skills) - gone if target.floor else set()
    short = target.floor * len(floors)
    for place, candidate in enumerate(tried[: len(accepted)]):
        skills = candidate.combination.skills
        if len(taken) == target.kept:
            break
        if not accepted[place] or (target.ceiling is not None and any(counts[s] >= target.ceiling for s in skills)):
            continue
        gain = sum(s in floors and counts[s] < target.floor for s in skills)
        if gain or target.kept - len(taken) - 1 >= ceil(short / len(skills)):
            taken.append(place)
            counts.update(skills)
            short -= gain
    return taken


@dataclass
class PlainSampler:
    """Plans waves of one k."""

    candidates: Candidates
    target: Target
    search: int
    tried: list[Candidate] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    is_exhausted: bool = False
    next_index: int = 0

    def hopeless(self) -> set[str]:
        """Skills that are given up."""
        tries = Counter(s for c in self.tried for s in c.combination.skills)
        kept = Counter(
            s for c, is_good in zip(self.tried, self.accepted, strict=True) if is_good for s in c.combination.skills
        )
        floor = self.target.floor
        return {s for s in self.target.skills if floor and tries[s] >= 100 * floor and kept[s] < floor}

    def taken(self) -> list[int]:
        """The places of the taken texts."""
        gone = set(self.target.skills) if self.is_exhausted else self.hopeless()
        return plainly_taken(self.tried, self.accepted, self.target, gone)

    def counts(self) -> "Counter[str]":
        """The taken texts by skill."""
        return Counter(s for place in self.taken() for s in self.tried[place].combination.skills)

    def below_floor(self) -> dict[str, int]:
        """Skills with fewer texts than the floor."""
        counts = self.counts()
        return {s: counts[s] for s in self.target.skills if self.target.floor and counts[s] < self.target.floor}

    def next_wave(self) -> list[Candidate]:
        """The candidates of the next wave."""
        missing, room = self.target.kept - len(self.taken()), self.target.most - len(self.tried)
        if missing <= 0 or room <= 0:
            self.is_exhausted = missing > 0
            return []
        size = missing
        if self.accepted:
            share = (sum(self.accepted) + 1) / (len(self.accepted) + 2)
            size = max(16, min(ceil(missing / share), 4 * len(self.accepted)))
        indices = self._useful(missing, min(room, size))
        self.next_index = indices[-1] + 1 if indices else self.next_index
        self.is_exhausted = not indices
        wave = [self.candidates[index] for index in indices]
        self.tried += wave
        return wave

    def _useful(self, missing: int, size: int) -> list[int]:
        counts, target = self.counts(), self.target
        gone = self.hopeless()
        lacking = {s: target.floor - counts[s] for s in target.skills if s not in gone and counts[s] < target.floor}
        k = self.tried[0].combination.k if self.tried else 1
        wanted = set(lacking) if lacking and missing <= ceil(sum(lacking.values()) / k) else None
        full = {s for s in counts if target.ceiling is not None and counts[s] >= target.ceiling}
        found: list[int] = []
        in_vain = 0
        for index in count(self.next_index):
            if in_vain == self.search or len(found) == size:
                break
            skills = set(self.candidates[index].combination.skills)
            if (wanted is None or wanted & skills) and not full & skills:
                found.append(index)
                in_vain = 0
            else:
                in_vain += 1
        return found


@dataclass
class PlainStep:
    """Waves of several k, from the outcomes of all conversations so far."""

    outcome_of: Callable[[ConversationKey], DecidedText | None]
    find: Callable[[Corpus], list[Removal]]
    waves: list[list[ConversationKey]] = field(default_factory=list)
    texts: list[KeptText] = field(default_factory=list)
    yields: list[SamplingYield] = field(default_factory=list)
    left: LeftOut = field(default_factory=LeftOut)
    is_broken: bool = False
    is_stopped: bool = False

    def run_k(self, k: int, sampler: PlainSampler, *, stops: int | None) -> None:
        """The waves of one k; the budget may be spent in a wave, by its number among all waves."""
        waves = 0
        while wave := sampler.next_wave():
            waves += 1
            self.waves.append([(c.combination.id, c.generation) for c in wave])
            if len(self.waves) == stops:
                self.is_stopped = sampler.is_exhausted = True
            self._learn(sampler)
            if self.is_broken or self.is_stopped:
                break
        self._close(k, sampler, waves)
        self.is_broken = self.is_broken and not self.is_stopped

    def _learn(self, sampler: PlainSampler) -> None:
        outcomes = [self.outcome_of((c.combination.id, c.generation)) for c in sampler.tried]
        conversations = [o and o.conversation for o in outcomes]
        self.unfinished = sum(c is None or not c.is_over for c in conversations)
        refused = sum(c is not None and not c.is_over and is_refused(c) for c in conversations)
        self.is_broken = self.unfinished > refused
        self.undecided = sum(c is not None and c.is_ungraded for c in conversations)
        self.places = [place for place, o in enumerate(outcomes) if o is not None and o.kept is not None]
        self.full = [o.kept for o in outcomes if o is not None and o.kept is not None]
        self.less = len(outcomes) - len(self.full) - self.undecided - self.unfinished
        texts = [*self.texts, *self.full]
        before = len(self.texts)
        found = [r for r in self.find(corpus_of(t.text for t in texts)) if r.text_index >= before]
        self.removed = {r.text_index - before: r.why for r in found}
        self.examples = [
            (r.why, texts[r.text_index].text, "an example" if r.copy_of is None else texts[r.copy_of].text)
            for r in islice(found, 5)
        ]
        reasons = [outcomes[place].shows for place in self.places]  # type: ignore[union-attr]
        self.shown = {n: why for n, why in enumerate(reasons) if why is not None and n not in self.removed}
        good = {place for n, place in enumerate(self.places) if n not in self.removed and n not in self.shown}
        sampler.accepted = [place in good for place in range(len(outcomes))]

    def _close(self, k: int, sampler: PlainSampler, waves: int) -> None:
        target, taken = sampler.target, sampler.taken()
        by_place = dict(zip(self.places, self.full, strict=True))
        self.texts += [by_place[place] for place in taken]
        last = taken[-1] if taken and len(taken) == target.kept else len(sampler.tried) - 1
        removed, shown = (
            Counter(why for n, why in reasons.items() if self.places[n] <= last)
            for reasons in (self.removed, self.shown)
        )
        below = {} if self.is_broken else sampler.below_floor()
        self.yields.append(
            SamplingYield(
                k, target.kept, len(sampler.tried), len(self.full), len(taken), waves, below, target.floor,
                target.ceiling,
            )
        )  # fmt: skip
        self.left = LeftOut(
            undecided=self.left.undecided + self.undecided,
            unfinished=self.left.unfinished + self.unfinished,
            less=self.left.less + self.less,
            removed=dict(Counter(self.left.removed) + removed),
            shown=dict(Counter(self.left.shown) + shown),
            examples=(*self.left.examples, *self.examples)[:5],
        )


def is_refused(conversation: DecidedConversation) -> bool:
    """Whether a server refused the last call for good."""
    last = conversation.conversation.turns[-1].outcome
    return isinstance(last, CallProblem) and last.kind == "failed"
