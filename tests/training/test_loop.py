"""A whole run: it learns, says how it goes, stops when it should, and leaves a model that writes."""

import json
import math
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillmix.errors import Interrupted, UserError
from skillmix.experiment.train_step import LoraSettings
from skillmix.training.data.batches import TrainingOrder
from skillmix.training.data.chat_formats import Turn
from skillmix.training.data.examples import Conversation, Encoder, Example
from skillmix.training.job_run import with_adapter
from skillmix.training.loop import TrainResult, operations_per_token, train
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe
from tests.training.tiny import Steps, example, random_step, tiny_model, weights_of
from tests.training.tokenizers_at_hand import tokenizer

pytestmark = pytest.mark.machine

FAST = TrainingRecipe(steps=6, learning_rate=1e-2, warmup_steps=0, gamma=0.5, precision="fp32", token_budget=100)


def run(
    recipe: TrainingRecipe, folder: Path, *, model: Any = None, **given: Any
) -> tuple[TrainResult, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    data = given.pop("data", Steps([random_step(number) for number in range(6)]))
    result = train(model or tiny_model(), data, recipe, folder, on_progress=lambda row: rows.append(dict(row)), **given)
    return result, rows


def test_a_tiny_model_learns_32_conversations_by_heart_and_writes_them(tmp_path: Path) -> None:
    words = ["bread", "rope", "tide", "lamp", "chess", "snow", "bell", "kite"]
    talks = [
        Conversation(f"{a} {b}", (Turn(f"{a} {b}", f"The {b} counts {n} {a}."), Turn("more", f"{n} {a}, twice a {b}.")))
        for n, (a, b) in enumerate((a, b) for a in words[:4] for b in words)
    ]
    encoder = Encoder(tokenizer("llama-2 trained here"), chat_format="llama-2")
    prepared = encoder.examples(talks, limit=200, too_long="refuse")
    model = tiny_model(size=64, vocabulary=len(encoder.tokenizer))
    recipe = TrainingRecipe(
        steps=150, learning_rate=1e-2, warmup_steps=5, schedule="cosine", clip=1.0, precision="fp32"
    )

    result, rows = run(recipe, tmp_path, model=model, data=TrainingOrder(prepared.examples, batch=16, seed=0))

    assert len(talks) == 32
    assert max(row["answers"] for row in rows[-2:]) < 0.05
    for place, one in enumerate(prepared.examples):
        tokens = torch.from_numpy(one.tokens).long()
        with torch.inference_mode():
            likeliest = result.model(tokens[None]).logits[0].argmax(-1)
        for start, end in answers_of(one):
            assert likeliest[start - 1 : end - 1].tolist() == one.tokens[start:end].tolist(), one.key
            if place % 4:
                continue
            written = result.model.generate(
                tokens[None, :start],
                attention_mask=torch.ones(1, start, dtype=torch.long),
                do_sample=False, max_new_tokens=60,
                eos_token_id=encoder.tokenizer.eos_token_id, pad_token_id=0,
            )[0, start:]  # fmt: skip
            assert written.tolist() == one.tokens[start:end].tolist(), one.key


def answers_of(one: Example) -> list[tuple[int, int]]:
    changes = np.flatnonzero(np.diff(np.concatenate([[0], one.is_trained, [0]])))
    return [(int(start), int(end)) for start, end in changes.reshape(-1, 2)]


def test_every_step_is_a_row_with_both_losses_and_the_pace(tmp_path: Path) -> None:
    _, rows = run(FAST, tmp_path, validation=[example(20, seed=3)])

    logged = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text(encoding="utf-8").splitlines()]
    assert logged == rows
    assert [row["step"] for row in rows] == list(range(6))
    assert [row["step"] for row in rows if "validation" in row] == [3, 5]
    assert all(math.isfinite(row[key]) for row in rows for key in ("answers", "replay", "norm"))
    assert all(row["tokens_per_second"] > 0 and row["utilisation"] is None for row in rows)
    assert rows[-1]["seconds_left"] == 0 < rows[0]["seconds_left"]


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_the_batch(tmp_path: Path) -> None:
    steps = [random_step(number) for number in range(6)]
    model = tiny_model()
    poisoned = Example("poison", np.array([1, 96, 96], dtype=np.int32), np.array([False, True, True]), is_replay=False)
    for place, examples in enumerate(steps):
        for one in examples:
            one.tokens[one.tokens == 96] = 5
        if place == 3:
            examples.append(poisoned)
    with torch.no_grad():
        model.model.embed_tokens.weight[96] = math.nan
    embeddings = torch.nn.Parameter(model.model.embed_tokens.weight.detach().clone().nan_to_num())
    model.lm_head.weight = embeddings  # only the input of token 96 is not a number

    with pytest.raises(UserError, match=r"Step 4 has .*: loss nan.*poison"):
        run(FAST, tmp_path, model=model, data=Steps(steps))

    last = json.loads((tmp_path / "training.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["step"] == 3 and last["problem"] == "not finite" and last["keys"][-1] == "poison"
    assert len(last["keys"]) == 8


def test_training_stops_early_and_keeps_the_best(tmp_path: Path) -> None:
    validation = [example(40, seed=77)]
    recipe = TrainingRecipe(
        steps=60, learning_rate=2e-2, warmup_steps=0, precision="fp32", patience=2, validate_every=3, token_budget=500
    )

    result, rows = run(recipe, tmp_path, data=Steps([random_step(0, texts=0)]), validation=validation)

    losses = {row["step"] + 1: row["validation"] for row in rows if "validation" in row}
    best = min(losses, key=lambda steps: losses[steps])
    assert result.steps == best and len(rows) == best + 2 * 3 < 60
    assert Engine(result.model, recipe).validate(validation) == pytest.approx(losses[best], rel=1e-6)


def test_an_early_stop_is_not_forgotten_by_a_resume(tmp_path: Path) -> None:
    validation = [example(40, seed=77)]
    data = Steps([random_step(0, texts=0)])
    recipe = TrainingRecipe(
        steps=60, learning_rate=2e-2, warmup_steps=0, precision="fp32", patience=2, validate_every=3, checkpoint_every=1
    )
    first, _ = run(recipe, tmp_path, data=data, validation=validation)

    again, rows = run(recipe, tmp_path, data=data, validation=validation)

    assert rows == [] and again.steps == first.steps
    assert torch.equal(weights_of(first.model), weights_of(again.model))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_an_interrupted_step_is_finished_and_kept(
    tmp_path: Path, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    was = signal.getsignal(number)  # ignored, perhaps, where tests run under nohup
    request.addfinalizer(lambda: signal.signal(number, was))
    signal.signal(number, signal.default_int_handler)

    class Interrupting(Steps):
        def step(self, at: int) -> Sequence[Example]:
            if at == 2:
                signal.raise_signal(number)
            return super().step(at)

    given = [random_step(at) for at in range(6)]
    straight, expected = run(FAST, tmp_path / "straight", data=Steps(given))

    with pytest.raises(Interrupted) as stop:
        run(FAST, tmp_path / "cut", data=Interrupting(given))
    resumed, rows = run(FAST, tmp_path / "cut", data=Steps(given))

    assert stop.value.number == number
    assert signal.getsignal(number) is signal.default_int_handler
    assert [row["step"] for row in rows] == [3, 4, 5]
    assert [row["answers"] for row in rows] == [row["answers"] for row in expected[3:]]
    assert torch.equal(weights_of(resumed.model), weights_of(straight.model))


def test_only_the_adapter_learns_and_dropout_is_drawn_by_step(tmp_path: Path) -> None:
    def adapted() -> Any:
        return with_adapter(tiny_model(), LoraSettings(rank=4, alpha=8, dropout=0.3), seed=0)

    before = tiny_model().state_dict()
    results: list[tuple[TrainResult, list[dict[str, Any]]]] = []
    for name in ("a", "b"):
        torch.rand(len(results) * 7)  # other draws in between change nothing
        (tmp_path / name).mkdir()
        results.append(run(FAST, tmp_path / name, model=adapted()))

    (first, rows), (second, others) = results
    kept = {key.replace(".base_layer", ""): value for key, value in first.model.get_base_model().state_dict().items()}
    assert all(torch.equal(kept[key], value) for key, value in before.items())
    assert [row["answers"] for row in rows] == [row["answers"] for row in others]
    assert torch.equal(weights_of(first.model), weights_of(second.model))
    without = run(FAST, tmp_path, model=with_adapter(tiny_model(), LoraSettings(rank=4, alpha=8), seed=0))[1]
    assert without[1]["answers"] != rows[1]["answers"]


def test_operations_count_what_is_trained_and_what_only_passes_gradients_on() -> None:
    model = tiny_model()
    count = sum(p.numel() for p in model.parameters())

    assert operations_per_token(model) == 6 * count
    assert operations_per_token(model.requires_grad_(False)) == 4 * count
