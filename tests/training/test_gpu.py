"""What can only be seen on a GPU: `pytest -m gpu tests/training/test_gpu.py`."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from skillmix.experiment.train_step import PRECISIONS
from skillmix.training.data.batches import pack
from skillmix.training.data.examples import Example
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe, _functions
from skillmix.training.step.packed_model import Recordings, inputs_of, packed_attention

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
GPU = torch.device("cuda")
VOCABULARY = 1000


@pytest.mark.parametrize("is_compiled", [False, True])
def test_replacing_one_conversation_leaves_the_others_bit_identical(is_compiled: bool) -> None:
    engine = Engine(model(), TrainingRecipe(precision="bf16-master", compile="on" if is_compiled else "off"))
    examples = conversations(8)
    others = conversations(8, seed=1)
    changed = [*examples[:3], replaced(examples[3], others[3]), *examples[4:]]

    before, after = (engine.packed.hidden_states(on_gpu(chosen)).detach() for chosen in (examples, changed))

    bounds = pack(examples).bounds
    same = torch.ones(bounds[-1], dtype=torch.bool)
    same[bounds[3] : bounds[4]] = False
    assert torch.equal(before[: bounds[-1]][same], after[: bounds[-1]][same])
    assert not torch.equal(before[bounds[3] : bounds[4]], after[bounds[3] : bounds[4]])


def test_unpadded_bf16_agrees_with_padded_fp32() -> None:
    examples = conversations(16)
    exact_loss, exact_gradient = padded_fp32(model(torch.float32), examples)
    engine = Engine(model(torch.float32), TrainingRecipe(precision="bf16-master", learning_rate=1e-30))

    step = engine.step(0, examples)

    gradient = torch.cat([trained.total.float() for trained in engine.optimizer.parameters])
    assert step.answers == pytest.approx(exact_loss, rel=0.005)
    assert torch.nn.functional.cosine_similarity(gradient, exact_gradient, dim=0) > 0.999


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("window", [-1, 99])
def test_flash_attention_agrees_with_the_exact_one(groups: int, window: int) -> None:
    lengths = [5, 300, 1, 128, 64]
    bounds = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)
    shapes = [(sum(lengths), heads, 64) for heads in (6, 6 // groups, 6 // groups)]
    exact = [torch.randn(shape).bfloat16().double().requires_grad_() for shape in shapes]
    fast = [tensor.detach().to(GPU, torch.bfloat16).requires_grad_() for tensor in exact]
    towards = torch.randn(shapes[0]).bfloat16()

    expected, _ = packed_attention(*exact, bounds, 512, 0.125, window)
    found, _ = packed_attention(*fast, bounds.to(GPU), 512, 0.125, window)
    expected.backward(towards.double())
    found.backward(towards.to(GPU))

    assert distance(found, expected) < 1e-2
    for a, b in zip(fast, exact, strict=True):
        assert distance(a.grad, b.grad) < 1e-2


@pytest.mark.parametrize("precision", ["bf16-master", "bf16-stochastic"])
def test_updates_on_the_gpu_draw_the_noise_of_the_cpu(precision: str) -> None:
    state = torch.float32 if precision == "bf16-master" else torch.bfloat16
    weight, first, gradient = (torch.randn(100_003) * 0.02 for _ in range(3))
    low = torch.randint(-30000, 30000, weight.shape, dtype=torch.int16) if precision == "bf16-master" else None
    tensors = [weight.bfloat16(), low, first.to(state), first.abs().to(state), gradient.to(state)]
    settings = [torch.tensor([1.0, 0.5, 2e-5, 1.1, 1.0]), *(torch.tensor(n, dtype=torch.int32) for n in (-77, 4097, 5))]

    copies = []
    for device in (torch.device("cpu"), GPU):
        copy = [None if tensor is None else tensor.clone().to(device) for tensor in tensors]
        update, _ = _functions(device.type == "cuda", "adam", PRECISIONS[precision], (0.9, 0.999), 1e-8)
        update(*copy, *(setting.to(device) for setting in settings))
        copies.append([tensor.float().cpu() for tensor in copy if tensor is not None])

    # Only a rounding of the last float32 bit may tell them apart, and it seldom crosses a border of bfloat16.
    equal = [float((a == b).float().mean()) for a, b in zip(*copies, strict=True)]
    assert equal[0] > 0.999, equal


@pytest.mark.parametrize("is_compiled", [False, True])
def test_recorded_steps_agree_with_steps_that_ran(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = TrainingRecipe(precision="bf16-master", compile="on" if is_compiled else "off", learning_rate=1e-4)
    recorded, plain = Engine(model(), recipe), Engine(model(), recipe)
    steps = [conversations(8, seed=number % 3) for number in range(12)]

    found = [recorded.step(number, step) for number, step in enumerate(steps)]
    monkeypatch.setattr(Recordings, "capture", lambda self, work: None)
    expected = [plain.step(number, step) for number, step in enumerate(steps)]

    assert recorded.recordings is not None and len(recorded.recordings.recorded) > 1 and not recorded.recordings.failed
    assert [step.answers for step in found] == pytest.approx([step.answers for step in expected], rel=1e-3)


def model(dtype: torch.dtype = torch.bfloat16) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=dtype).to(GPU)


def conversations(count: int, *, seed: int = 0) -> list[Example]:
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        length = int(rng.integers(50, 1000))
        is_trained = np.arange(length) >= length // 2
        found.append(Example(str(number), rng.integers(0, VOCABULARY, length).astype(np.int32), is_trained, False))
    return found


def replaced(example: Example, other: Example) -> Example:
    tokens = np.resize(other.tokens, len(example.tokens))
    return Example(example.key, tokens, example.is_trained, is_replay=False)


def on_gpu(examples: list[Example]) -> Any:
    batch = pack(examples, multiple=128)
    return inputs_of(batch, shares=np.ones(len(batch.rows))).sent(GPU, longest=1024)


def padded_fp32(whole: Any, examples: list[Example]) -> tuple[float, torch.Tensor]:
    longest = max(len(e.tokens) for e in examples)
    tokens = torch.zeros(len(examples), longest, dtype=torch.long)
    labels, mask = torch.full_like(tokens, -100), torch.zeros_like(tokens)
    for row, example in enumerate(examples):
        length = len(example.tokens)
        tokens[row, :length], mask[row, :length] = torch.from_numpy(example.tokens).long(), 1
        labels[row, :length] = torch.from_numpy(np.where(example.is_trained, example.tokens, -100))
    loss = whole(input_ids=tokens.to(GPU), attention_mask=mask.to(GPU), labels=labels.to(GPU)).loss
    loss.backward()
    return float(loss), torch.cat([p.grad.reshape(-1).float() for p in whole.parameters()])


def distance(found: Any, expected: Any) -> float:
    expected = expected.detach().double()
    return float((found.detach().double().cpu() - expected).norm() / expected.norm())
