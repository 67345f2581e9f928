"""Combinations that are packed into numbers come back whole, and are found by their ids."""

import pytest

from skillmix.catalog.combinations import combination_of, plain_combination
from skillmix.catalog.packed_combinations import PackedCombinations

MANY = [combination_of([f"s{n % 40}", f"s{n % 7 + 50}"], f"topic {n}") for n in range(3000)]


def test_what_was_packed_comes_back() -> None:
    packed = PackedCombinations(MANY, first=10)

    assert list(packed) == MANY
    assert packed[-1] == MANY[-1]
    assert packed[5:12] == MANY[5:12]
    assert packed[3] is MANY[3]


def test_a_combination_is_found_by_its_id_while_more_come() -> None:
    packed = PackedCombinations(MANY[:700], first=0)
    assert [packed.find(c.id) for c in MANY[:700]] == list(range(700))
    assert packed.find(MANY[700].id) is None

    for combination in MANY[700:]:
        packed.append(combination)

    assert [packed.find(c.id) for c in MANY] == list(range(3000))
    assert packed.find("0" * 16) is None


def test_combinations_with_other_numbers_of_skills_are_refused() -> None:
    packed = PackedCombinations([plain_combination("Sewing")])

    assert packed[0] == plain_combination("Sewing")
    with pytest.raises(ValueError, match="2 skills"):
        packed.append(MANY[0])
