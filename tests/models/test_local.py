"""Generation in process: the same tokens as plain `generate`, whatever else is in the batch."""

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillmix.calls import CallProblem, Decoding, GenerateKey, Message, Outcome, Reply, Request
from skillmix.models.bundled import bundled_models

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

pytestmark = pytest.mark.machine

LONG = bool(os.environ.get("SKILLMIX_LONG"))
LAYERS = None if LONG or os.environ.get("SKILLMIX_MACHINES") else 4
"""Four layers have every shape that thirty have; only the whole model ends a text by itself."""
FOLDER = bundled_models()[0].folder
TOPICS = ["bread", "trains", "chess", "rivers", "clocks", "ladders", "cats", "violins", "winter", "bridges"]


@cache
def loaded() -> Any:
    if FOLDER is None:
        pytest.skip("the bundled model is not in the cache: `skillmix models --fetch` brings it")
    from skillmix.models.local.loading import load

    return load(Path(FOLDER), device="cpu")


@pytest.fixture
def first_layers() -> Iterator[None]:
    """The model without most of its layers."""
    model = loaded().model.model
    whole = model.layers
    model.layers = whole[:LAYERS]
    yield
    model.layers = whole


def request(number: int, *, temperature: float = 0.7, tokens: int = 12, turn: int = 1) -> Request:
    asked = f"Write one short sentence about {TOPICS[number % 10]}. " + "Keep it plain. " * (number % 4)
    key = GenerateKey("s", str(number // 2), number % 2, turn)
    return Request(key, "m", (Message("user", asked),), Decoding(temperature, tokens), 100 + number)


def second(first: Request, text: str) -> Request:
    said = (*first.messages, Message("assistant", text), Message("user", "Write it again, better."))
    key = GenerateKey("s", first.key.combination, first.key.generation, 2)
    return Request(key, "m", said, first.decoding, (first.seed or 0) + 1000)


def run(requests: Sequence[Request], *, slots: int, both_turns: bool = False) -> dict[str, Outcome]:
    """Outcomes by key."""
    from skillmix.models.local.generator import Generator

    found: dict[str, Outcome] = {}
    released: list[Request] = []

    def done(asked: Request, outcome: Outcome) -> None:
        found[str(asked.key)] = outcome
        if both_turns and isinstance(outcome, Reply) and isinstance(asked.key, GenerateKey) and asked.key.turn == 1:
            released.append(second(asked, outcome.text))

    generator = Generator(loaded().model, loaded().renderer, slots=slots, done=done)
    generator.add(requests)
    while not generator.is_idle or released:
        generator.add(released)
        released.clear()
        generator.work()
    return found


def texts(outcomes: dict[str, Outcome]) -> dict[str, str]:
    return {key: outcome.text for key, outcome in outcomes.items() if isinstance(outcome, Reply)}


def plain(requests: Sequence[Request]) -> list[str]:
    """What `generate` writes, greedily, left-padded."""
    model, renderer = loaded()
    rows = renderer.tokens([r.messages for r in requests])
    longest = max(map(len, rows))
    pad = renderer.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    limit = requests[0].decoding.max_tokens
    model.set_attn_implementation("sdpa")
    try:
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=limit, pad_token_id=pad
        )
    finally:
        from skillmix.models.local.attention import ATTENTION

        model.set_attn_implementation(ATTENTION)
    ends = renderer.ends(model)
    cut = [[t for t in _until(row, ends)] for row in out[:, longest:].tolist()]
    said: list[str] = renderer.texts(cut)
    return said


def _until(row: list[int], ends: list[int]) -> list[int]:
    for place, token in enumerate(row):
        if token in ends:
            return row[:place]
    return row


@pytest.mark.usefixtures("first_layers")
def test_greedy_tokens_are_those_of_generate_in_both_turns() -> None:
    count = 200 if LONG else 12
    requests = [request(n, temperature=0.0, tokens=24 if LONG else 10) for n in range(count)]

    ours = texts(run(requests, slots=8, both_turns=True))

    first = [text for start in range(0, count, 8) for text in plain(requests[start : start + 8])]
    asked_again = [second(r, t) for r, t in zip(requests, first, strict=True)]
    again = [text for start in range(0, count, 8) for text in plain(asked_again[start : start + 8])]
    same = [ours[str(r.key)] == text for r, text in zip(requests, first, strict=True)]
    same += [ours[str(r.key)] == text for r, text in zip(asked_again, again, strict=True)]
    assert np.mean(same) >= 0.99


@pytest.mark.usefixtures("first_layers")
def test_a_text_does_not_depend_on_what_else_is_in_the_batch() -> None:
    requests = [request(n) for n in range(50 if LONG else 9)]
    orders = [requests, requests[::-1], requests[1::2] + requests[::2]]

    found = [texts(run(order, slots=4)) for order in orders]

    assert found[0] == found[1] == found[2]
    assert len(set(found[0].values())) > len(requests) / 2


def test_the_second_turn_is_the_same_with_the_cache_and_without() -> None:
    """Some first answers are cut by the limit, some tokens are not those that the text would be read as."""
    numbers = range(200) if LONG else (0, 1, 3, 4, 7)
    requests = [request(n, tokens=16 if n % 2 else 5) for n in numbers]
    with_cache = run(requests, slots=8 if LONG else 4, both_turns=True)

    anew = [second(r, texts(with_cache)[str(r.key)]) for r in requests]
    without = run(anew, slots=4 if LONG else 3)

    same = [texts(with_cache)[key] == text for key, text in texts(without).items()]
    assert np.mean(same) == 1.0
    finishes = {o.finish for o in with_cache.values() if isinstance(o, Reply)}
    assert finishes == {"stop", "length"}


@pytest.mark.usefixtures("first_layers")
def test_a_prompt_is_read_once_for_all_generations() -> None:
    from skillmix.models.local.generator import Generator

    generator = Generator(loaded().model, loaded().renderer, slots=4, done=lambda *_: None)
    messages = (Message("user", "Write one short sentence about bread. " * 30),)
    asked = [Request(GenerateKey("s", "c", n, 1), "m", messages, Decoding(0.7, 2), n) for n in range(4)]
    generator.add(asked)
    while not generator.is_idle:
        generator.work()

    length = len(loaded().renderer.tokens([messages])[0])
    assert length > 200
    assert generator.read_tokens == length + 3 * (length % 16)  # the last, open piece is read by each


def test_a_prompt_that_is_too_long_is_a_failure_of_its_call() -> None:
    long = Request(GenerateKey("s", "c", 0, 1), "m", (Message("user", "word " * 9000),), Decoding(0.7, 8), 0)

    found = run([long, request(1, tokens=2)], slots=2)

    outcome = found[str(long.key)]
    assert isinstance(outcome, CallProblem)
    assert (outcome.kind, outcome.reason) == ("failed", "prompt too long")
    assert isinstance(found[str(request(1).key)], Reply)


@pytest.mark.usefixtures("first_layers")
def test_out_of_memory_halves_the_slots_and_the_texts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from skillmix.models.local.cpu.cpu_decoder import CpuDecoder

    requests = [request(n, tokens=4) for n in range(6)]
    calm = texts(run(requests, slots=4))
    steps = iter(range(100))
    real = CpuDecoder.run

    def sometimes(self: CpuDecoder, *arguments: Any, **named: Any) -> None:
        if next(steps) == 2:
            raise torch.OutOfMemoryError("no room")
        real(self, *arguments, **named)

    monkeypatch.setattr(CpuDecoder, "run", sometimes)

    assert texts(run(requests, slots=4)) == calm


def test_marks_of_the_chat_format_in_a_text_stay_text() -> None:
    renderer = loaded().renderer
    (tokens,) = renderer.tokens([(Message("user", "a <|im_end|> b"),)])

    ends = renderer.tokenizer.convert_tokens_to_ids("<|im_end|>")
    plain_ones = renderer.tokens([(Message("user", "a b"),)])[0]
    assert tokens.count(ends) == plain_ones.count(ends)
