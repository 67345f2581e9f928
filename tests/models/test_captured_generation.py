"""Generation as on a GPU, rehearsed on a CPU: plain functions take the place of kernels and of CUDA graphs."""

import gc
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Outcome, Reply, Request

torch = pytest.importorskip("torch", reason="the extra `local` is not installed")
pytest.importorskip("transformers", reason="the extra `local` is not installed")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from skillmix.models.local import generator as generating  # noqa: E402
from skillmix.models.local.attention import prepared  # noqa: E402
from skillmix.models.local.generator import Generator  # noqa: E402
from skillmix.models.local.gpu import gpu_decoder as decoding  # noqa: E402

VOCABULARY = 97


class Letters:
    """A renderer whose tokens are letters."""

    def tokens(self, conversations: Sequence[tuple[Message, ...]], _: object = None) -> list[list[int]]:
        return [[ord(letter) % VOCABULARY for m in turns for letter in m.content] for turns in conversations]

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return ["".join(chr(200 + token) for token in row) for row in rows]

    def opening(self, _: Sequence[int]) -> str:
        return ""

    def ends(self, _: object) -> list[int]:
        return [5]


class Event:
    """An event of a device that is behind by a round, or ahead."""

    is_done = False

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        pass


class Graph:
    """Captured work."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


@cache
def model() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = LlamaConfig(**sizes, vocab_size=VOCABULARY, num_key_value_heads=1, head_dim=32, initializer_range=0.3)
    return prepared(LlamaForCausalLM(config))


def plain(query: Any, keys: Any, values: Any, scaling: float) -> Any:
    """Attention of the last tokens of a slot; heads come first."""
    keys, values = (each.repeat_interleave(len(query) // len(each), 0) for each in (keys, values))
    scores = query @ keys.transpose(1, 2) * scaling
    return (scores + torch.full(scores.shape[1:], -torch.inf).triu(scores.shape[2] - scores.shape[1] + 1)).softmax(
        -1
    ) @ values


def step_attention(query: Any, new: Any, store: Any, *, scaling: float) -> Any:
    rows = []
    for row, position in enumerate(store.positions.tolist()):
        if store.is_active[row]:
            store.keys[row, :, position], store.values[row, :, position] = new[0][row, :, 0], new[1][row, :, 0]
        held = store.keys[row, :, : position + 1], store.values[row, :, : position + 1]
        rows.append(plain(query[row], *held, scaling).transpose(0, 1))
    return torch.stack(rows)


def store_packed(key: Any, value: Any, store: Any) -> None:
    for first, count, slot, position in store.blocks.tolist():
        for target, new in ((store.keys, key), (store.values, value)):
            target[slot, :, position : position + count] = new[0, :, first : first + count]


def packed_attention(query: Any, store: Any, *, scaling: float) -> Any:
    output = torch.full((query.shape[2], query.shape[1], query.shape[3]), torch.nan)
    for first, count, slot, position in store.blocks.tolist():
        held = store.keys[slot, :, : position + count], store.values[slot, :, : position + count]
        new = plain(query[0, :, first : first + count], *held, scaling)
        output[first : first + count] = new.transpose(0, 1)
    return output[None]


def copy_slots(store: Any, copies: Any, *, longest: int) -> None:
    sources, targets = set(copies[:, 0].tolist()), set(copies[:, 1].tolist())
    assert not sources & targets
    for source, target, length in copies.tolist():
        assert length <= longest
        store[:, target, :, :length] = store[:, source, :, :length]


def capture(self: Any, work: Callable[[], None]) -> Graph:
    before = [tensor.clone() for tensor in self.rows.changing]
    work()
    for tensor, saved in zip(self.rows.changing, before, strict=True):
        tensor.copy_(saved)
    return Graph(work)


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, replacement in (
        ("step_attention", step_attention),
        ("store_packed", store_packed),
        ("packed_attention", packed_attention),
        ("copy_slots", copy_slots),
    ):
        monkeypatch.setattr(decoding, name, replacement)
    monkeypatch.setattr(decoding, "fuse", lambda _: None)
    monkeypatch.setattr(decoding.GpuDecoder, "_captured", capture)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 1))
    real = decoding.packed_rows
    monkeypatch.setattr(decoding, "packed_rows", lambda starts: real(starts, 256))


def requests(count: int) -> list[Request]:
    """Prompts of different lengths, two generations of each; some share a beginning."""
    random = Random(1)
    made = []
    for number in range(count):
        length = random.choice([3, 60, 64, 65, 150, 300])
        prompt = "the same beginning " * (4 * (number % 2)) + "".join(random.choice("abcdef ") for _ in range(length))
        settings = Decoding(0.7 if number % 3 else 0.0, 3 + number % 9, 0.9 if number % 4 == 0 else None)
        for generation in range(2):
            key = GenerateKey("s", str(number), generation, 1)
            made.append(Request(key, "m", (Message("user", prompt),), settings, 2 * number + generation))
    return made


def texts(asked: Sequence[Request], *, slots: int, is_gpu: bool) -> dict[str, str]:
    """The texts of both turns."""
    found: dict[str, str] = {}
    released: list[Request] = []

    def done(request: Request, outcome: Outcome) -> None:
        assert isinstance(outcome, Reply)
        assert isinstance(request.key, GenerateKey)
        found[str(request.key)] = outcome.text
        if request.key.turn == 1:
            turns = (*request.messages, Message("assistant", outcome.text), Message("user", "and again, please " * 3))
            key = GenerateKey("s", request.key.combination, request.key.generation, 2)
            released.append(Request(key, "m", turns, request.decoding, (request.seed or 0) + 1000))

    renderer: Any = Letters()
    generator = Generator(model(), renderer, slots=slots, done=done)
    if is_gpu:
        generator._is_gpu, generator._pace = True, generating._PACES["cuda"]
    generator.add(asked)
    while not generator.is_idle or released:
        generator.add(list(released))
        released.clear()
        generator.work()
    return found


@pytest.mark.parametrize("is_ahead", [False, True])
def test_texts_are_those_of_a_cpu(like_a_gpu: None, monkeypatch: pytest.MonkeyPatch, is_ahead: bool) -> None:
    asked = requests(8)
    wanted = texts(asked, slots=4, is_gpu=False)
    monkeypatch.setattr(Event, "is_done", is_ahead)

    assert len(wanted) == 32
    assert texts(asked, slots=6, is_gpu=True) == wanted


def test_a_dropped_decoder_gives_its_memory_back_at_once(like_a_gpu: None) -> None:
    gc.disable()
    try:
        decoder = decoding.GpuDecoder(model(), slots=2, length=128, longest=4, ends=[])
        cache = weakref.ref(decoder.cache)
        del decoder
        assert cache() is None
    finally:
        gc.enable()


def test_a_longer_prompt_gets_longer_slots(like_a_gpu: None) -> None:
    asked = [
        Request(GenerateKey("s", str(length), 0, 1), "m", (Message("user", "x" * length),), Decoding(0.0, 3), length)
        for length in (20, 300, 40)
    ]

    assert len(texts(asked, slots=2, is_gpu=True)) == 6


def test_copies_that_overwrite_a_source_come_later() -> None:
    copies = [(0, 3, 5), (0, 4, 6), (1, 0, 7), (2, 5, 8), (5, 6, 1)]

    assert decoding.independent_copies(copies) == [[(0, 3, 5), (0, 4, 6)], [(1, 0, 7), (2, 5, 8)], [(5, 6, 1)]]
