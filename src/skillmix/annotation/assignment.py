"""Deal texts to people: some texts to all of them, the others to one person each.

A person's list does not depend on who else reads, except where two own lists would hold the same text. Answers that
a person gave before count, whatever changed since: the run, the number of texts or the people.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from skillmix.annotation.sample import SampleText, sample_order
from skillmix.hashing import ranked

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Assignment:
    """The texts of each person, by id, in the order in which the person sees them."""

    texts: Mapping[str, tuple[str, ...]]

    @property
    def shared(self) -> int:
        """How many texts every two people have in common at least; 0 for one person."""
        pairs = combinations(map(set, self.texts.values()), 2)
        return min((len(one & other) for one, other in pairs), default=0)

    @property
    def distinct(self) -> int:
        """How many different texts people read."""
        return len(set[str]().union(*map(set, self.texts.values())))


def assign(
    candidates: Sequence[SampleText],
    raters: Sequence[str],
    *,
    n: int,
    overlap: float,
    seed: int = 0,
    answered: Mapping[str, Collection[str]] | None = None,
) -> Assignment:
    """Give n texts to each person, a share of them in common; fewer if there are not so many texts.

    Where the run has too few texts for own texts, people share more. `answered` are the texts that a person has
    answered: they replace own texts without an answer, so that no answer is in vain.
    """
    dealt = _deal(candidates, raters, n=n, overlap=overlap, seed=seed)
    known = {one.id for one in candidates}
    texts = {}
    for rater, own in dealt.items():
        before = [one for one in (answered or {}).get(rater, ()) if one in known]
        texts[rater] = tuple(ranked(_with_answered(own, before), "annotate", seed, rater))
    return Assignment(texts)


class _Hand:
    """The texts of one person, in the order of dealing."""

    def __init__(self, order: Iterator[str]) -> None:
        self._order = order
        self.shared: list[str] = []
        self.own: list[str] = []

    def take_own(self, taken: set[str]) -> None:
        """Take the next text that nobody has; nothing if there is none."""
        one = next((one for one in self._order if one not in taken), None)
        if one is not None:
            self.own.append(one)
            taken.add(one)


def _deal(
    candidates: Sequence[SampleText], raters: Sequence[str], *, n: int, overlap: float, seed: int
) -> dict[str, _Hand]:
    for_all = sample_order(candidates, "shared", seed)
    hands = {rater: _Hand(sample_order(candidates, "own", seed, rater)) for rater in raters}
    taken: set[str] = set()
    for number in range(min(n, len(candidates))):
        if is_shared(number, overlap):
            one = next((one for one in for_all if one not in taken), None)
            for hand in hands.values() if one is not None else ():
                hand.shared.append(str(one))
            taken.add(str(one))
        else:
            for hand in hands.values():
                hand.take_own(taken)
    for rater, hand in hands.items():
        _fill(hand, sample_order(candidates, "own", seed, rater), n)
    return hands


def is_shared(number: int, overlap: float) -> bool:
    """Whether the text of this number, from 0, is one for all; the shared ones are spread evenly.

    >>> [is_shared(number, 0.3) for number in range(10)].count(True)
    3
    """
    return int((number + 1) * overlap + _ROUNDING) > int(number * overlap + _ROUNDING)


def _fill(hand: _Hand, order: Iterator[str], n: int) -> None:
    """Add texts that others read too, if there are not enough texts for own ones."""
    has = {*hand.shared, *hand.own}
    while len(has) < n:
        one = next((one for one in order if one not in has), None)
        if one is None:
            return
        hand.own.append(one)
        has.add(one)


def _with_answered(hand: _Hand, answered: Sequence[str]) -> list[str]:
    """The texts of a person, in which answered ones replace the last own ones that have no answer."""
    texts = [*hand.shared, *hand.own]
    extra = [one for one in answered if one not in set(texts)]
    done = set(answered)
    open_ones = [one for one in reversed(hand.own) if one not in done]
    replaced = set(open_ones[: len(extra)])
    return [*(one for one in texts if one not in replaced), *extra[: len(replaced)]]
