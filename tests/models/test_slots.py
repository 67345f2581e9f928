"""Which slot holds which tokens."""

import pytest

pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

from skillmix.models.local.generator import BLOCK, SlotTable, chain_of, common_length


def tokens(*starts: int) -> list[int]:
    return [start + n for start in starts for n in range(BLOCK)]


def test_the_slot_that_knows_most_is_found() -> None:
    table = SlotTable(3)
    short, long = table.free(now=0, patience=0), table.free(now=0, patience=0)
    assert short is not None
    assert long is not None
    table.set(short, tokens(0))
    table.set(long, tokens(0, 1000))
    prompt = [*tokens(0, 1000), 5, 6]

    match = table.find(prompt, chain_of(prompt))

    assert match == (long, 2 * BLOCK)


def test_the_last_token_of_a_prompt_is_never_known() -> None:
    table = SlotTable(1)
    table.set(0, tokens(0, 1000))
    match = table.find(tokens(0, 1000), chain_of(tokens(0, 1000)))

    assert match == (0, 2 * BLOCK - 1)


def test_a_slot_at_rest_waits_for_a_while_and_is_forgotten_when_taken() -> None:
    table = SlotTable(1)
    assert table.free(now=0, patience=0) == 0
    table.rest(0, tokens(0), now=10)

    assert table.free(now=10.1, patience=0.2) is None
    assert 0 in table.resting
    assert table.free(now=10.3, patience=0.2) == 0
    assert table.find(tokens(0), chain_of(tokens(0))) is None


def test_what_two_slots_share_stays_known_when_one_forgets_it() -> None:
    table = SlotTable(2)
    for slot in (0, 1):
        table.set(slot, tokens(0, 1000 * (slot + 1)))
    table.set(0, [])
    prompt = tokens(0, 5000)

    match = table.find(prompt, chain_of(prompt))

    assert match == (1, BLOCK)


def test_common_beginnings_are_measured_exactly() -> None:
    base = list(range(100))
    for place in (0, 1, 50, 98, 99):
        other = [*base[:place], -1, *base[place + 1 :]]
        assert common_length(base, other) == place
    assert common_length(base, base[:70]) == 70
    assert common_length([], base) == 0


def test_a_chain_can_be_continued_from_that_of_a_beginning() -> None:
    whole = [*tokens(0, 1000, 2000), 7]
    for blocks in range(4):
        beginning = chain_of(whole[: blocks * BLOCK + 5 * (blocks < 3)])
        assert chain_of(whole, beginning) == chain_of(whole)
