"""One step: the same whatever the packing, the micro-batches and the memory."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from skillmix.errors import UserError
from skillmix.training.data.examples import Example
from skillmix.training.step import packed_model as loss_module
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe
from tests.training.tiny import distance, example, gradients_of, random_step, tiny_model, weights_of

pytestmark = pytest.mark.machine

STILL = TrainingRecipe(learning_rate=1e-30, optimizer="sgd", precision="fp32", gamma=0.5)


def padded_gradients(model: Any, examples: list[Example], gamma: float) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Means of answers and replay, and the gradient of their weighted sum, as the usual padded batch gives them."""
    longest = max(len(e.tokens) for e in examples)
    tokens = np.zeros((len(examples), longest), dtype=np.int64)
    mask, trained = np.zeros_like(tokens), np.zeros(tokens.shape, dtype=bool)
    for row, e in enumerate(examples):
        tokens[row, : len(e.tokens)], mask[row, : len(e.tokens)] = e.tokens, 1
        trained[row, : len(e.tokens)] = e.is_trained
    inputs, is_trained = torch.from_numpy(tokens), torch.from_numpy(trained)
    logits = model(input_ids=inputs, attention_mask=torch.from_numpy(mask)).logits
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), inputs[:, 1:], reduction="none")
    is_replay = torch.tensor([e.is_replay for e in examples])[:, None]
    means = [losses[is_trained[:, 1:] & (is_replay == kind)].mean() for kind in (False, True)]
    (means[0] + gamma * means[1]).backward()
    return [mean.item() for mean in means], {name: p.grad.reshape(-1) for name, p in model.named_parameters()}


def test_unpadded_equals_padded_on_twenty_random_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "LOGITS", 97 * 11)  # so that eleven rows are one chunk
    engine = Engine(tiny_model(), STILL)
    for number in range(20):
        examples = random_step(number, longest=120)
        engine.budget = 50 + 20 * number

        step = engine.step(0, examples)

        means, gradients = padded_gradients(tiny_model(), examples, gamma=0.5)
        assert [step.answers, step.replay] == pytest.approx(means, rel=1e-5)
        found = gradients_of(engine)
        assert found.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert distance(found[name], gradient) < 1e-4, name
        assert step.norm == pytest.approx(float(torch.cat(list(gradients.values())).norm()), rel=1e-4)


def test_eight_micro_batches_of_one_equal_one_of_eight() -> None:
    lengths = np.linspace(50, 1000, 8).astype(int)
    examples = [example(int(length), seed=place) for place, length in enumerate(lengths)]
    found = []
    for budget in (1, 10_000):
        engine = Engine(
            tiny_model(), TrainingRecipe(learning_rate=0.1, optimizer="sgd", warmup_steps=0, token_budget=budget)
        )
        step = engine.step(0, examples)
        found.append((step, torch.cat(list(gradients_of(engine).values())), weights_of(engine.packed.model)))

    (apart, apart_gradient, apart_weights), (joint, joint_gradient, joint_weights) = found
    assert (apart.micro_batches, joint.micro_batches) == (8, 1)
    assert apart.answers == pytest.approx(joint.answers, rel=1e-6)
    assert distance(apart_gradient, joint_gradient) < 1e-5
    assert distance(apart_weights, joint_weights) < 1e-6


def test_out_of_memory_in_the_third_of_five_micro_batches_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [[example(20, seed=10 * number + place) for place in range(5)] for number in range(6)]
    recipe = TrainingRecipe(learning_rate=1e-2, warmup_steps=0, token_budget=39, precision="fp32")
    undisturbed, disturbed = (Engine(tiny_model(), recipe) for _ in range(2))
    places: list[int] = []
    begin = disturbed.optimizer.begin

    def full(step: int, place: int) -> None:
        places.append(place)
        if len(places) == 2 * 5 + 3:
            raise torch.OutOfMemoryError("planted")
        begin(step, place)

    monkeypatch.setattr(disturbed.optimizer, "begin", full)
    expected = [undisturbed.step(number, examples) for number, examples in enumerate(steps)]
    found = [disturbed.step(number, examples) for number, examples in enumerate(steps)]

    assert {step.micro_batches for step in expected} == {5} and places[12] == 2
    assert disturbed.budget is not None and disturbed.budget < 39
    assert [step.answers for step in found] == pytest.approx([step.answers for step in expected], rel=1e-5)
    assert [step.norm for step in found] == pytest.approx([step.norm for step in expected], rel=1e-5)


def test_what_does_not_fit_alone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tiny_model(), TrainingRecipe(token_budget=30))

    def full(*_: int) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(engine.optimizer, "begin", full)

    with pytest.raises(UserError, match="single example of 25 tokens"):
        engine.step(0, [example(25, seed=1), example(9, seed=2)])


def test_replaced_tokens_of_one_example_leave_the_others_alone() -> None:
    from skillmix.training.data.batches import pack
    from skillmix.training.step.packed_model import PackedModel, inputs_of

    packed = PackedModel(tiny_model())
    examples = [example(length, seed=length) for length in (30, 41, 17)]
    changed = [examples[0], example(41, seed=99), examples[2]]

    def hidden(chosen: list[Example]) -> torch.Tensor:
        batch = pack(chosen)
        with torch.no_grad():
            return packed.hidden_states(inputs_of(batch, shares=np.ones(len(batch.rows))))

    before, after = hidden(examples), hidden(changed)

    assert torch.equal(before[:30], after[:30]) and torch.equal(before[71:], after[71:])
    assert not torch.equal(before[30:71], after[30:71])


def test_a_gradient_that_is_not_finite_changes_no_weight() -> None:
    model = tiny_model()
    engine = Engine(model, TrainingRecipe(warmup_steps=0, learning_rate=1e-2))
    engine.step(0, random_step(0))
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = math.inf
    before = [
        weights_of(model),
        *(trained.second.clone() for trained in engine.optimizer.parameters if trained.second is not None),
    ]

    step = engine.step(1, random_step(1))

    after = [
        weights_of(model),
        *(trained.second for trained in engine.optimizer.parameters if trained.second is not None),
    ]
    assert not math.isfinite(step.norm)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
