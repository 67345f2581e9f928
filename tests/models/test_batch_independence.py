"""On a CPU a text depends on its own request alone, whatever shares the batch and however the processor rounds."""

import os
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Outcome, Reply, Request
from skillmix.models.bundled import bundled_models

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from skillmix.models.local.cpu.cpu_decoder import CpuDecoder, block_attention, plan_blocks  # noqa: E402
from skillmix.models.local.generator import Generator  # noqa: E402

pytestmark = pytest.mark.machine

LAYERS = None if os.environ.get("SKILLMIX_LONG") else 2
"""Two layers have every shape that thirty have, in a sixth of the time."""
CONVERSATIONS = 50 if os.environ.get("SKILLMIX_LONG") or os.environ.get("SKILLMIX_MACHINES") else 12
FOLDER = bundled_models()[0].folder
TOPICS = ["bread", "trains", "chess", "rivers", "clocks", "ladders", "cats", "violins", "winter", "bridges"]


@cache
def loaded() -> Any:
    """The bundled model with its first layers: real shapes, and texts that any rounding would change."""
    if FOLDER is None:
        pytest.skip("the bundled model is not in the cache: `skillmix models --fetch` brings it")
    from skillmix.models.local.loading import load

    found = load(Path(FOLDER), device="cpu")
    found.model.model.layers = found.model.model.layers[:LAYERS]
    return found


def request(number: int) -> Request:
    """Prompts of different lengths and different numbers of tokens to write."""
    asked = f"Write one short sentence about {TOPICS[number % 10]}. " + "Keep it plain. " * (7 * number % 13)
    key = GenerateKey("s", str(number), 0, 1)
    top_p = 0.95 if number % 5 == 0 else None
    decoding = Decoding(temperature=1.0, max_tokens=3 + number % 4, top_p=top_p)
    return Request(key, "m", (Message("user", asked),), decoding, 100 + number)


class NotingGenerator(Generator):
    """Notes the log-probability of every token: texts show a change of rounding rarely, these show it always."""

    def __init__(self, *, slots: int) -> None:
        super().__init__(loaded().model, loaded().renderer, slots=slots, done=self._keep)
        self.found: dict[str, tuple[str, list[float]]] = {}
        self._chances: dict[str, list[float]] = {}

    def _keep(self, asked: Request, outcome: Outcome) -> None:
        assert isinstance(outcome, Reply)
        self.found[str(asked.key)] = outcome.text, self._chances[str(asked.key)]

    def _fitting_decoder(self) -> Any:
        decoder = super()._fitting_decoder()
        if decoder is not None and decoder.rows.chances is None:
            decoder.rows.note_chances()
        return decoder

    def _deliver(self) -> None:
        for slot, row, tokens in self._ended:
            assert isinstance(self._decoder, CpuDecoder) and self._decoder.rows.chances is not None
            self._chances[str(row.request.key)] = self._decoder.rows.chances[slot, : len(tokens)].tolist()
        super()._deliver()


def written(requests: Sequence[Request], *, slots: int) -> dict[str, tuple[str, list[float]]]:
    """Texts with the log-probabilities of their tokens."""
    generator = NotingGenerator(slots=slots)
    generator.add(requests)
    while not generator.is_idle:
        generator.work()
    return generator.found


@pytest.mark.parametrize("slots", [1, 5, 8])
def test_a_text_is_the_same_in_every_order_of_the_requests(slots: int) -> None:
    requests = [request(number) for number in range(CONVERSATIONS)]

    orders = [requests, requests[::-1], requests[1::2] + requests[::2]]
    found = [written(order, slots=slots) for order in orders]

    assert all(first == second for first, second in pairwise(found))
    assert len({chances[0] for _, chances in found[0].values()}) > 0.9 * CONVERSATIONS


def test_a_text_is_the_same_with_every_number_of_slots() -> None:
    requests = [request(number) for number in range(CONVERSATIONS)]

    found = [written(requests, slots=slots) for slots in (1, 3, 16, 40)]

    assert all(first == second for first, second in pairwise(found))


def test_a_text_is_the_same_whatever_other_requests_have_read() -> None:
    """The cache holds nothing, the whole beginning, or the beginning and the reply of the turn before."""
    opening = Message("user", "Write one short sentence about bread. Keep it plain. " * 12)
    reply = Message("assistant", "Bread is warm. " * 5)
    again = Message("user", "Write it again, about trains this time, and keep every word of it short.")
    decoding = Decoding(temperature=1.0, max_tokens=5)
    first = [Request(GenerateKey("s", "c", n, 1), "m", (opening,), decoding, n) for n in range(3)]
    second = [Request(GenerateKey("s", "c", n, 2), "m", (opening, reply, again), decoding, 9 + n) for n in range(3)]

    together = written([*first, *second], slots=6)
    generator = NotingGenerator(slots=2)
    for turn in (first, second):
        generator.add(turn)
        while not generator.is_idle:
            generator.work()
    alone = {key: found for asked in (*first, *second) for key, found in written([asked], slots=1).items()}

    assert together == generator.found == alone


def rows_of_keys(ends: Sequence[int], *, blocks: int) -> tuple[Any, tuple[Any, Any, Any], Any]:
    """Queries; keys, values and a plan for that many blocks; and the places of the rows."""
    generator = torch.Generator().manual_seed(3)
    keys, values = (torch.randn(len(ends), 3, 1024, 64, generator=generator) for _ in range(2))
    query = torch.randn(len(ends), 9, 1, 64, generator=generator)
    places = torch.tensor([*ends, 128 * blocks]) - 1  # one more row, whose end decides the number of blocks
    plan = plan_blocks(places, key_heads=3)
    own = plan._replace(mask=plan.mask[: 3 * len(ends)], is_beyond=plan.is_beyond[: 3 * len(ends)])
    return query, (keys, values, own), places[:-1]


def test_attention_by_blocks_is_attention() -> None:
    ends = [1, 100, 128, 129, 300, 512]
    query, blocked, places = rows_of_keys(ends, blocks=4)

    found = block_attention(query, *blocked, scaling=0.125)

    for row, place in enumerate(places.tolist()):
        keys, values = (t[row, :, : place + 1].repeat_interleave(3, 0) for t in blocked[:2])
        plain = scaled_dot_product_attention(query[row], keys, values, scale=0.125)
        assert torch.allclose(found[row, 0], plain[:, 0], atol=2e-6)


def test_blocks_behind_the_end_of_a_row_change_no_bit() -> None:
    ends = [1, 100, 128, 129, 300, 512]

    few, many = (
        block_attention(query, *blocked, scaling=0.125)
        for query, blocked, _ in (rows_of_keys(ends, blocks=4), rows_of_keys(ends, blocks=8))
    )

    assert torch.equal(few, many)


def test_rows_without_a_slot_give_zeros() -> None:
    query, blocked, _ = rows_of_keys([5, 6], blocks=1)

    found = block_attention(torch.cat([query, query]), *blocked, scaling=0.125)

    assert torch.equal(found[:2], block_attention(query, *blocked, scaling=0.125))
    assert not found[2:].any()
