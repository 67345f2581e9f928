"""Many combinations in a few bytes each: ids as numbers of eight bytes, and numbers in place of names."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, overload

from skillmix.catalog.combinations import Combination

_FIRST: Final = 10_000
"""So many combinations stay objects as well: short draws are read often."""


class _NumberedNames(dict[str, int]):
    """The number of each name; a new name goes to the end of a list."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self._names)
        self._names.append(name)
        return number


class PackedCombinations(Sequence[Combination]):
    """A list of combinations that have the same number of skills; it grows at its end.

    >>> from skillmix.catalog.combinations import combination_of
    >>> drawn = PackedCombinations([combination_of(["metaphor"], "Sewing"), combination_of(["irony"], "Sewing")])
    >>> drawn[1].skills, drawn.find(drawn[1].id)
    (('irony',), 1)
    """

    def __init__(self, combinations: Iterable[Combination] = (), *, first: int = _FIRST) -> None:
        self._most_first = first
        self._first: list[Combination] = []
        self._ids = array("Q")
        self._names: list[str] = []
        self._numbers = _NumberedNames(self._names)
        self._name_numbers = array("I")
        """For each combination the numbers of its skills, and then that of its topic."""
        self._width = 0
        """How many names each combination has."""
        self._table = array("I", bytes(4 << 10))
        """A hash table: in the first free slot from that of its id on, the number of a combination plus 1.

        It takes 8 to 16 bytes for a combination; a dictionary of a million ids took 121 bytes for each.
        """
        self._in_table = 0
        for combination in combinations:
            self.append(combination)

    def append(self, combination: Combination) -> None:
        """Add a combination at the end."""
        self._width = self._width or combination.k + 1
        if combination.k + 1 != self._width:
            raise ValueError(f"{combination} has {combination.k} skills, and the first one has {self._width - 1}")
        if len(self._first) < self._most_first:
            self._first.append(combination)
        self._ids.append(int(combination.id, 16))
        self._name_numbers.extend(map(self._numbers.__getitem__, (*combination.skills, combination.topic)))

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> Combination: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Combination]: ...
    def __getitem__(self, index: int | slice) -> Combination | Sequence[Combination]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        if number < len(self._first):
            return self._first[number]
        *skills, topic = self._names_of(number)
        return Combination(f"{self._ids[number]:016x}", tuple(skills), topic)

    def skills(self, number: int) -> Sequence[str]:
        """The skills of a combination, in less time than the combination takes."""
        return self._first[number].skills if number < len(self._first) else self._names_of(number)[:-1]

    def _names_of(self, number: int) -> list[str]:
        numbers = self._name_numbers[number * self._width : (number + 1) * self._width]
        return [self._names[one] for one in numbers]

    def find(self, identity: str) -> int | None:
        """The number of the combination with an id; None if it is not here."""
        self._fill_table()
        wanted = int(identity, 16)
        mask = len(self._table) - 1
        slot = wanted & mask
        while number := self._table[slot]:
            if self._ids[number - 1] == wanted:
                return number - 1
            slot = (slot + 1) & mask
        return None

    def _fill_table(self) -> None:
        """Put the combinations that have come since the last search into the table, of which half stays free."""
        if self._in_table == len(self._ids):
            return
        if 2 * len(self._ids) > len(self._table):
            self._table = array("I", bytes(4 << (2 * len(self._ids)).bit_length()))
            self._in_table = 0
        table, mask = self._table, len(self._table) - 1
        for number in range(self._in_table, len(self._ids)):
            slot = self._ids[number] & mask
            while table[slot]:
                slot = (slot + 1) & mask
            table[slot] = number + 1
        self._in_table = len(self._ids)
