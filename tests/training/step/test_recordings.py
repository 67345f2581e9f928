"""Recorded passes: padded shapes change no gradient, and replays read the inputs of their own step."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from skillmix.experiment.train_step import LoraSettings
from skillmix.models.local.gpu.graph_pool import GraphPool, NotCaptured
from skillmix.training.data.batches import pack
from skillmix.training.data.examples import Example
from skillmix.training.saving import with_adapter
from skillmix.training.step import compiling as compile_choice
from skillmix.training.step import engine as engine_module
from skillmix.training.step import inputs as inputs_module
from skillmix.training.step.engine import Engine, GraphRecorder, Recordings
from skillmix.training.step.inputs import device_inputs, exact_shape, host_inputs, padded_shape, tokens_multiple
from skillmix.training.step.optimizer import TrainingRecipe
from tests.training.tiny import distance, example, gradients_of, random_step, tiny_model, weights_of

pytestmark = pytest.mark.machine

RECIPE = TrainingRecipe(learning_rate=1e-2, warmup_steps=0, precision="fp32", gamma=0.5, token_budget=500)


class Rerunner:
    """Runs recorded work again instead of replaying a graph; like a graph, a recording does not run the work."""

    def __init__(self) -> None:
        self.recorded = self.replayed = self.forgotten = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def forget(self) -> None:
        self.forgotten += 1


class Refuser(Rerunner):
    """Records nothing."""

    def record(self, work: Callable[[], None]) -> None:
        self.recorded += 1


def double_model() -> Any:
    return tiny_model().double()


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "_LEAST_STEP", 64)


@pytest.fixture(autouse=True)
def nothing_compiled_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have compiled the same layers, which then cost nothing."""
    monkeypatch.setattr(compile_choice, "_compiled", set())


def test_padding_changes_no_gradient() -> None:
    for number in range(10):
        examples = random_step(number)
        exact, padded = Engine(double_model(), RECIPE), Engine(double_model(), RECIPE, recorder=Rerunner())

        expected, found = exact.step(0, examples), padded.step(0, examples)

        assert (found.answers, found.replay, found.norm) == pytest.approx(
            (expected.answers, expected.replay, expected.norm), rel=1e-6
        )
        for (name, one), other in zip(gradients_of(exact).items(), gradients_of(padded).values(), strict=True):
            assert distance(other, one) < 1e-6, name


@pytest.mark.parametrize("budget", [500, 100])
def test_replayed_steps_equal_steps_that_ran(budget: int) -> None:
    recipe = RECIPE.model_copy(update={"token_budget": budget, "clip": 0.5, "weight_decay": 0.1})
    recorder = Rerunner()
    plain, recorded = Engine(tiny_model(), recipe, recorder=Refuser()), Engine(tiny_model(), recipe, recorder=recorder)
    steps = [random_step(number % 8) for number in range(24)]

    expected = [plain.step(number, examples) for number, examples in enumerate(steps)]
    found = [recorded.step(number, examples) for number, examples in enumerate(steps)]

    assert recorder.replayed > 24 and recorder.recorded > 1
    assert found == expected
    assert torch.equal(weights_of(recorded.packed.model), weights_of(plain.packed.model))


def test_work_that_cannot_be_recorded_is_tried_once() -> None:
    refuser = Refuser()
    engine = Engine(tiny_model(), RECIPE, recorder=refuser)
    examples = random_step(1)

    for number in range(5):
        engine.step(number, examples)

    assert refuser.recorded == 2  # the micro-batch, and the update
    assert engine.recordings is not None and engine.recordings.count == 0


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_recording_leaves_the_marks_of_gradients_to_its_replays(is_recorded: bool) -> None:
    engine = Engine(tiny_model(), RECIPE)

    class Hooked(Rerunner):
        """Runs the hooks of the work while it records, as a graph does."""

        def record(self, work: Callable[[], None]) -> Callable[[], None] | None:
            work()
            return (lambda: None) if is_recorded else None

    recordings = Recordings(Hooked(), engine.optimizer)
    names = {trained.name for trained in engine.optimizer.parameters}
    found = []

    def hook() -> None:
        found.append("model.norm.weight" in engine.optimizer.untouched)
        engine.optimizer.untouched.discard("model.norm.weight")

    for _ in range(3):
        engine.optimizer.untouched = set(names)
        recordings.run("key", hook)

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

    host = host_inputs(batch, shape, shares=np.full(len(batch.rows), 0.5), is_pinned=False)
    inputs = device_inputs(host.block, shape, longest=64)

    assert inputs.bounds.tolist() == [0, 50, 90, 128, 128]
    assert inputs.shares.sum() == 0.5 * len(batch.rows) and inputs.is_target.sum() == len(batch.rows) < shape.rows
    assert not inputs.is_target[len(batch.rows) :].any()
    assert int(inputs.rows.min()) >= 0 and int(inputs.rows.max()) < shape.tokens == 128


def test_a_ladder_wastes_little() -> None:
    for tokens in range(600, 70_000, 371):
        multiple = tokens_multiple(tokens)
        filled = -(-tokens // multiple) * multiple
        assert tokens <= filled <= max(tokens + 512, tokens * 1.13)


def test_a_batch_without_targets_has_one_row_of_no_weight() -> None:
    batch = pack([Example("still", np.arange(5, dtype=np.int32), np.zeros(5, dtype=bool), is_replay=False)])

    assert exact_shape(batch).rows == 1


def _multiple(examples: list[Example]) -> int:
    return tokens_multiple(sum(len(e.tokens) for e in examples))


def on_gpu(recipe: TrainingRecipe, monkeypatch: pytest.MonkeyPatch, *, model: Any = None, gib: float = 100) -> Engine:
    """An engine that takes itself for one on a GPU, as far as its decisions go."""
    monkeypatch.setattr(engine_module, "GraphRecorder", lambda device: Rerunner())
    monkeypatch.setattr(engine_module, "_free_memory", lambda: int(gib * 2**30))
    engine = Engine(model or tiny_model(), recipe)
    engine.device = torch.device("cuda")
    return engine


def begun(engine: Engine) -> Engine:
    engine._begin(random_step(0))
    return engine


def test_small_models_on_one_gpu_are_recorded_without_measuring_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = begun(on_gpu(TrainingRecipe(precision="fp32", compile="off"), monkeypatch))

    assert engine.recordings is not None
    assert engine.budget == 1 << 16


@pytest.mark.parametrize("what", ["large", "dropout", "recompute", "little memory"])
def test_other_trainings_are_not_recorded(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = LoraSettings(rank=4, alpha=8, dropout=0.1)
    model = with_adapter(tiny_model(), lora, seed=0) if what == "dropout" else tiny_model()
    recompute: Any = "on" if what == "recompute" else "auto"
    recipe = TrainingRecipe(precision="fp32", compile="off", recompute=recompute, token_budget=500)
    if what == "large":
        monkeypatch.setattr(engine_module, "_LARGE", 1000)

    engine = begun(on_gpu(recipe, monkeypatch, model=model, gib=1 if what == "little memory" else 100))

    assert engine.recordings is None
    assert engine.budget == 500


def test_memory_is_measured_where_a_step_may_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = on_gpu(TrainingRecipe(precision="fp32", compile="off"), monkeypatch, gib=1)
    monkeypatch.setattr(engine, "_measured_budget", lambda examples: 123)

    assert begun(engine).budget == 123


@pytest.mark.parametrize(("trainings", "is_compiled"), [(1, False), (1_000_000, True)])
def test_auto_compiles_where_all_trainings_together_save_time(
    trainings: int, is_compiled: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(engine_module, "compile_layers", lambda layers, is_lean: compiled.append(layers))
    recipe = TrainingRecipe(precision="fp32", steps=1000, trainings=trainings)

    begun(on_gpu(recipe, monkeypatch))

    assert bool(compiled) == is_compiled
    assert ("does not compile" in capsys.readouterr().err) != is_compiled


def test_recordings_that_are_dropped_leave_their_memory_to_no_others() -> None:
    recorder = Rerunner()
    recordings = Recordings(recorder, Engine(tiny_model(), RECIPE).optimizer)

    recordings.clear()

    assert recorder.forgotten == 1


def test_a_pass_that_cannot_be_recorded_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def capture(self: Any, work: Callable[[], None]) -> None:
        raise NotCaptured("no reason")

    monkeypatch.setattr(GraphPool, "capture", capture)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    recorder = GraphRecorder(torch.device("cuda"))

    assert [recorder.record(lambda: None) for _ in range(3)] == [None, None, None]
    assert capsys.readouterr().err.count("cannot be recorded as a CUDA graph, and stays slower: no reason") == 1
