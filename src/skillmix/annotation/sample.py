"""Choose texts for people: spread over students, numbers of skills, outcomes and skills, in proportion to the texts.

The texts stand on a line, sorted by student, then k, then outcome. An order visits the line as evenly as possible at
every moment (bit-reversed counting, from a start that a hash decides), so that any first n texts hold about n/N of each
student, of each k of a student, and of each outcome of these. Within such a group, the text comes next whose skills
have been shown least, in proportion to how often the texts have these skills. A sample in proportion needs no weights:
shares that are counted in it estimate the shares in all texts. More texts of a rare outcome would bias sensitivity
and specificity.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from skillmix.hashing import digest, seed_of


class SampleText(NamedTuple):
    """A text that may be chosen."""

    id: str
    strata: tuple[str, ...]
    """Its groups from the widest to the narrowest: student, k, outcome."""
    skills: tuple[str, ...]


def sample_order(candidates: Sequence[SampleText], *purpose: str | int) -> Iterator[str]:
    """Ids of all candidates in the order of choice; the first n are the same for every n.

    >>> texts = [SampleText(f"{student}{i}", (student,), ("metaphor",)) for student in "ab" for i in range(4)]
    >>> sorted(id[0] for id in list(sample_order(texts, "demo"))[:4])
    ['a', 'a', 'b', 'b']
    """
    places = {one.strata: _place(one.strata, purpose) for one in candidates}
    line = sorted((one.strata for one in candidates), key=places.__getitem__)
    groups = _groups(candidates, purpose)
    skills = _SkillShares(candidates)
    for position in _spread(len(line), seed_of(0, "start", *purpose)):
        chosen = _next_of(groups[line[position]], skills)
        skills.show(chosen)
        yield chosen.id


def _place(strata: tuple[str, ...], purpose: tuple[str | int, ...]) -> tuple[bytes, ...]:
    """Where a group stands on the line: within its wider groups, in an order of hashes."""
    return tuple(digest("stratum", purpose, strata[: depth + 1]) for depth in range(len(strata)))


_Entry = tuple[float, bytes, SampleText]
"""How much the skills of a text were shown when it was last looked at, a hash, and the text."""


def _groups(candidates: Sequence[SampleText], purpose: tuple[str | int, ...]) -> dict[tuple[str, ...], list[_Entry]]:
    groups: dict[tuple[str, ...], list[_Entry]] = defaultdict(list)
    for one in candidates:
        groups[one.strata].append((0.0, digest("text", purpose, one.id), one))
    for group in groups.values():
        heapify(group)
    return groups


class _SkillShares:
    """How much of each skill's texts has been chosen."""

    def __init__(self, candidates: Sequence[SampleText]) -> None:
        self._texts = Counter(skill for one in candidates for skill in one.skills)
        self._shown: Counter[str] = Counter()

    def show(self, chosen: SampleText) -> None:
        self._shown.update(chosen.skills)

    def of(self, one: SampleText) -> float:
        return sum(self._shown[skill] / self._texts[skill] for skill in one.skills)


def _next_of(group: list[_Entry], skills: _SkillShares) -> SampleText:
    """Take the text whose skills were shown least, or nearly least: a few texts are looked at, not all.

    Shares only grow. So an entry whose share has not changed since it was looked at is the least of all.
    """
    looked: list[_Entry] = []
    while group and len(looked) < _MOST_LOOKS:
        share, order, one = heappop(group)
        now = skills.of(one)
        looked.append((now, order, one))
        if now <= share:
            break
    best = min(looked)
    for entry in looked:
        if entry is not best:
            heappush(group, entry)
    return best[2]


_MOST_LOOKS: Final = 24


def _spread(total: int, start: int) -> Iterator[int]:
    """All numbers below a total, each next one far from those before it.

    >>> list(_spread(6, 0))
    [0, 4, 2, 1, 5, 3]
    """
    bits = max(0, total - 1).bit_length()
    for count in range(1 << bits if total else 0):
        reverse = int(f"{count:0{bits}b}"[::-1], 2) if bits else 0
        position = (reverse + start) % (1 << bits)
        if position < total:
            yield position
