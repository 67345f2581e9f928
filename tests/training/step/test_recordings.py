"""Recorded passes: padded shapes change no gradient, and replays read the inputs of their own step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from skillmix.experiment.train_step import LoraSettings
from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.training.data.batches import pack
from skillmix.training.data.examples import Example
from skillmix.training.job_run import with_adapter
from skillmix.training.step import engine as engine_module
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe
from skillmix.training.step.packed_model import Recordings, inputs_of, ladder_step, padded_shape
from tests.training.tiny import distance, example, gradients_of, random_step, tiny_model, weights_of

pytestmark = pytest.mark.machine

CPU = torch.device("cpu")
RECIPE = TrainingRecipe(learning_rate=1e-2, warmup_steps=0, precision="fp32", gamma=0.5, token_budget=500)


class Rerunner(Recordings):
    """Runs recorded work again instead of replaying a graph; like a graph, a recording does not run the work."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.captured = self.replayed = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None] | None:
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay

    @contextmanager
    def running(self) -> Iterator[None]:
        yield


class Refuser(Rerunner):
    """Records nothing."""

    def capture(self, work: Callable[[], None]) -> None:
        self.captured += 1


def engine_with(recordings: Recordings, *, model: Any = None, recipe: TrainingRecipe = RECIPE) -> Engine:
    engine = Engine(model or tiny_model(), recipe)
    engine.recordings = recordings
    return engine


def double_model() -> Any:
    return tiny_model().double()


def test_padding_changes_no_gradient() -> None:
    for number in range(10):
        examples = random_step(number)
        exact, padded = Engine(double_model(), RECIPE), engine_with(Rerunner(), model=double_model())

        expected, found = exact.step(0, examples), padded.step(0, examples)

        assert (found.answers, found.replay, found.norm) == pytest.approx(
            (expected.answers, expected.replay, expected.norm), rel=1e-6
        )
        for (name, one), other in zip(gradients_of(exact).items(), gradients_of(padded).values(), strict=True):
            assert distance(other, one) < 1e-6, name


@pytest.mark.parametrize("budget", [500, 100])
def test_replayed_steps_equal_steps_that_ran(budget: int) -> None:
    recipe = RECIPE.model_copy(update={"token_budget": budget, "clip": 0.5, "weight_decay": 0.1})
    recordings = Rerunner()
    plain, recorded = engine_with(Refuser(), recipe=recipe), engine_with(recordings, recipe=recipe)
    steps = [random_step(number % 8) for number in range(24)]

    expected = [plain.step(number, examples) for number, examples in enumerate(steps)]
    found = [recorded.step(number, examples) for number, examples in enumerate(steps)]

    assert recordings.replayed > 24 and recordings.captured > 1
    assert found == expected
    assert torch.equal(weights_of(recorded.packed.model), weights_of(plain.packed.model))


def test_work_that_cannot_be_recorded_is_tried_once() -> None:
    refuser = Refuser()
    engine = engine_with(refuser)
    examples = random_step(1)

    for number in range(5):
        engine.step(number, examples)

    assert refuser.captured == 2  # the micro-batch, and the update
    assert not refuser.recorded


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_recording_leaves_the_marks_of_gradients_to_its_replays(is_recorded: bool) -> None:
    engine = Engine(tiny_model(), RECIPE)

    class Hooked(Rerunner):
        """Runs the hooks of the work while it records, as a graph does."""

        def capture(self, work: Callable[[], None]) -> Callable[[], None] | None:
            work()
            return (lambda: None) if is_recorded else None

    recordings = Hooked()
    names = {trained.name for trained in engine.optimizer.parameters}
    found = []

    def hook() -> None:
        found.append("model.norm.weight" in engine.optimizer.untouched)
        engine.optimizer.untouched.discard("model.norm.weight")

    for _ in range(3):
        engine.optimizer.untouched = set(names)
        recordings.run("key", hook, engine.optimizer)

        assert engine.optimizer.untouched == names - {"model.norm.weight"}
    assert all(found)


def test_similar_micro_batches_have_the_same_shape() -> None:
    rng = np.random.default_rng(0)
    shapes = set()
    for number in range(200):
        lengths = np.clip(rng.normal(37, 10, 32), 5, 100).astype(int)
        batch = pack(
            examples := [example(int(n), seed=100 * number + index) for index, n in enumerate(lengths)],
            multiple=_multiple(examples),
        )
        shape = padded_shape(batch)
        assert shape.tokens == len(batch.tokens) and shape.segments >= len(batch.bounds) - 1
        assert len(batch.rows) <= shape.rows <= shape.tokens
        shapes.add(shape)

    assert len(shapes) <= 6


def test_padding_adds_empty_examples_and_rows_of_no_weight_at_the_end() -> None:
    batch = pack([example(50, seed=1), example(40, seed=2)], multiple=64)
    shape = padded_shape(batch)

    inputs = inputs_of(batch, shares=np.full(len(batch.rows), 0.5), shape=shape)

    assert inputs.shape == shape
    assert inputs.bounds.tolist() == [0, 50, 90, 128, 128]
    assert inputs.shares.sum() == 0.5 * len(batch.rows) and inputs.is_target.sum() == len(batch.rows) < shape.rows
    assert not inputs.is_target[len(batch.rows) :].any()
    assert int(inputs.rows.min()) >= 0 and int(inputs.rows.max()) < shape.tokens == 128


def test_a_ladder_wastes_little() -> None:
    for tokens in range(600, 70_000, 371):
        multiple = ladder_step(tokens)
        filled = -(-tokens // multiple) * multiple
        assert tokens <= filled <= max(tokens + 512, tokens * 1.13)


def test_a_batch_without_targets_has_one_row_of_no_weight() -> None:
    batch = pack([Example("still", np.arange(5, dtype=np.int32), np.zeros(5, dtype=bool), is_replay=False)])

    assert len(inputs_of(batch, shares=np.zeros(0)).rows) == 1


def _multiple(examples: list[Example]) -> int:
    return ladder_step(sum(len(e.tokens) for e in examples))


def on_gpu(recipe: TrainingRecipe, monkeypatch: pytest.MonkeyPatch, *, model: Any = None, gib: float = 100) -> Engine:
    """An engine that takes itself for one on a GPU, as far as its decisions go; it has begun its first step."""
    compiled: list[Any] = []
    monkeypatch.setattr(engine_module, "compile_layers", lambda layers, is_lean: compiled.append(layers))
    monkeypatch.setattr(engine_module, "_free_memory", lambda: int(gib * 2**30))
    monkeypatch.setattr(Engine, "_measured_budget", lambda self, examples: 123)
    engine = Engine(model or tiny_model(), recipe)
    engine.device = torch.device("cuda")
    engine._begin(random_step(0))
    engine.is_compiled = bool(compiled)  # type: ignore[attr-defined]
    return engine


def large_model() -> Any:
    """A model of two billion weights that takes no memory."""
    with torch.device("meta"):
        return tiny_model(size=8192, vocabulary=200_000)


def test_small_models_on_one_gpu_are_recorded_without_measuring_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = on_gpu(TrainingRecipe(precision="fp32", compile="off"), monkeypatch)

    assert engine.recordings is not None
    assert engine.budget == 1 << 16


@pytest.mark.parametrize("what", ["large", "dropout", "recompute", "little memory"])
def test_other_trainings_are_not_recorded(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = LoraSettings(rank=4, alpha=8, dropout=0.1)
    model = {"dropout": with_adapter(tiny_model(), lora, seed=0), "large": large_model()}.get(what)
    recompute: Any = "on" if what == "recompute" else "auto"
    recipe = TrainingRecipe(precision="fp32", compile="off", recompute=recompute, token_budget=500)

    engine = on_gpu(recipe, monkeypatch, model=model, gib=1 if what == "little memory" else 1000)

    assert engine.recordings is None
    assert engine.budget == 500


def test_memory_is_measured_where_a_step_may_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_gpu(TrainingRecipe(precision="fp32", compile="off"), monkeypatch, gib=1).budget == 123


@pytest.mark.parametrize(
    ("steps", "is_large", "setting", "is_compiled"),
    [
        (199, False, "auto", False),
        (200, False, "auto", True),
        (2, True, "auto", True),
        (4000, True, "off", False),
        (2, False, "on", True),
    ],
)
def test_auto_compiles_large_models_and_long_trainings_on_a_gpu(
    steps: int, is_large: bool, setting: Any, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = TrainingRecipe(precision="fp32", steps=steps, compile=setting)

    engine = on_gpu(recipe, monkeypatch, model=large_model() if is_large else None)

    assert engine.is_compiled == is_compiled  # type: ignore[attr-defined]


def test_a_pass_that_cannot_be_recorded_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def capture(self: Any, work: Callable[[], None]) -> None:
        raise NotCaptured("no reason")

    monkeypatch.setattr(GraphPool, "capture", capture)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    recordings, optimizer = Recordings(torch.device("cuda")), Engine(tiny_model(), RECIPE).optimizer

    for key in (1, 1, 2, 2, 2):
        recordings.run(key, lambda: None, optimizer)

    assert recordings.failed == {1, 2}
    assert capsys.readouterr().err.count("cannot be recorded as a CUDA graph, so it runs more slowly: no reason") == 1
