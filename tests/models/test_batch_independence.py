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

from skillmix.models.local.block_attention import BlockedKeys, block_attention, plan_blocks  # noqa: E402
from skillmix.models.local.decoder import Decoder, independent_width  # noqa: E402
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

    def _fitting_decoder(self) -> Decoder | None:
        decoder = super()._fitting_decoder()
        if decoder is not None and decoder.chances is None:
            decoder.note_chances()
        return decoder

    def _write(self) -> None:
        super()._write()
        assert self._decoder is not None and self._decoder.chances is not None
        for slot, row, tokens in self._ended:
            self._chances[str(row.request.key)] = self._decoder.chances[slot, : len(tokens)].tolist()


def written(requests: Sequence[Request], *, slots: int) -> dict[str, tuple[str, list[float]]]:
    """Texts with the log-probabilities of their tokens."""
    generator = NotingGenerator(slots=slots)
    generator.add(requests)
    while not generator.is_idle:
        generator.work()
    return generator.found


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_a_text_is_the_same_in_every_order_of_the_requests(slots: int) -> None:
    requests = [request(number) for number in range(CONVERSATIONS)]

    orders = [requests, requests[::-1], requests[1::2] + requests[::2]]
    found = [written(order, slots=slots) for order in orders]

    assert all(first == second for first, second in pairwise(found))
    assert len({chances[0] for _, chances in found[0].values()}) > 0.9 * CONVERSATIONS


def test_a_processor_that_treats_some_rows_differently_gets_smaller_products(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def agree_up_to_two(self: Decoder) -> bool:
        asked.append(self.slots)
        return self.slots <= 2

    monkeypatch.setattr(Decoder, "rows_agree", agree_up_to_two)

    assert independent_width(loaded().model, limit=7) == 2
    assert asked == [7, 4, 2]
    requests = [request(number) for number in range(9)]
    assert written(requests, slots=5) == written(requests[::-1], slots=5) == written(requests, slots=2)


def test_rows_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder(loaded().model, slots=4, length=160, longest=1, ends=[])
    real = decoder._logits

    def last_row_is_off(hidden: Any) -> Any:
        logits = real(hidden)
        logits[-1, 0] += 1e-6
        return logits

    monkeypatch.setattr(decoder, "_logits", last_row_is_off)

    assert not decoder.rows_agree()


def rows_of_keys(ends: Sequence[int], *, blocks: int) -> tuple[Any, BlockedKeys, Any]:
    """Queries, keys with a plan for that many blocks, and the places of the rows."""
    generator = torch.Generator().manual_seed(3)
    keys, values = (torch.randn(len(ends), 3, 1024, 64, generator=generator) for _ in range(2))
    query = torch.randn(len(ends), 9, 1, 64, generator=generator)
    places = torch.tensor([*ends, 128 * blocks]) - 1  # one more row, whose end decides the number of blocks
    plan = plan_blocks(places, key_heads=3)
    own = plan._replace(mask=plan.mask[: 3 * len(ends)], is_beyond=plan.is_beyond[: 3 * len(ends)])
    return query, BlockedKeys(keys, values, own), places[:-1]


def test_attention_by_blocks_is_attention() -> None:
    ends = [1, 100, 128, 129, 300, 512]
    query, blocked, places = rows_of_keys(ends, blocks=4)

    found = block_attention(query, blocked, scaling=0.125)

    for row, place in enumerate(places.tolist()):
        keys, values = (t[row, :, : place + 1].repeat_interleave(3, 0) for t in (blocked.keys, blocked.values))
        plain = scaled_dot_product_attention(query[row], keys, values, scale=0.125)
        assert torch.allclose(found[row, 0], plain[:, 0], atol=2e-6)


def test_blocks_behind_the_end_of_a_row_change_no_bit() -> None:
    ends = [1, 100, 128, 129, 300, 512]

    few, many = (
        block_attention(query, blocked, scaling=0.125)
        for query, blocked, _ in (rows_of_keys(ends, blocks=4), rows_of_keys(ends, blocks=8))
    )

    assert torch.equal(few, many)


def test_rows_without_a_slot_give_zeros() -> None:
    query, blocked, _ = rows_of_keys([5, 6], blocks=1)

    found = block_attention(torch.cat([query, query]), blocked, scaling=0.125)

    assert torch.equal(found[:2], block_attention(query, blocked, scaling=0.125))
    assert not found[2:].any()
