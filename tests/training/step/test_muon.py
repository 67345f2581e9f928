"""Muon for the matrices of the layers, and Adam for everything else."""

import pytest
import torch

from skillmix.errors import UserError
from skillmix.experiment.train_step import RecipeSettings
from skillmix.training.ranks import Ranks
from skillmix.training.step.engine import Engine
from skillmix.training.step.optimizer import TrainingRecipe, orthogonal
from tests.training.tiny import random_step, tiny_model

RECIPE = TrainingRecipe(optimizer="muon", learning_rate=0.02, adam_learning_rate=1e-3, warmup_steps=0)


def test_singular_values_become_one_and_directions_stay() -> None:
    both = torch.randn(2, 24, 8, generator=torch.Generator().manual_seed(0))
    matrix = both[1]

    found = orthogonal(both)[1]

    values = torch.linalg.svdvals(found)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    assert float(values.min()) > 0.6 and float(values.max()) < 1.3
    assert float((left.T @ found @ right.T).diagonal().min()) > 0.6
    assert torch.allclose(orthogonal(matrix.T[None])[0], found.T, atol=1e-6)


def test_matrices_of_layers_are_updated_as_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)  # torch would round inside
    engine = Engine(tiny_model(), RECIPE)
    named = dict(engine.packed.model.named_parameters())
    copies = {name: p.detach().clone() for name, p in named.items() if "layers" in name and p.ndim == 2}
    theirs = torch.optim.Muon(list(copies.values()), lr=0.02, weight_decay=0.0)
    starts = {name: p.clone() for name, p in copies.items()}
    for number in range(3):
        engine.step(number, random_step(number))
        for trained in engine.optimizer.parameters:
            if trained.name in copies:
                copies[trained.name].grad = trained.total.view(copies[trained.name].shape).clone()
        theirs.step()

    for name, expected in copies.items():
        moved, wanted = named[name].detach() - starts[name], expected - starts[name]
        assert float((moved - wanted).norm() / wanted.norm()) < 1e-4, name


def test_directions_of_many_matrices_at_once_are_those_of_single_matrices() -> None:
    engine = Engine(tiny_model(), RECIPE)
    engine.step(0, random_step(0))
    numbers = torch.ones(5)
    alone = dict(engine.optimizer._directions(numbers))
    engine.optimizer._most_at_once = 1 << 20

    together = dict(engine.optimizer._directions(numbers))

    assert alone and alone.keys() == together.keys()
    assert all(torch.allclose(together[name], alone[name], atol=1e-5) for name in alone)


def test_other_parameters_are_updated_by_adam() -> None:
    recipe = {"learning_rate": 1e-3, "warmup_steps": 0}
    engines = [Engine(tiny_model(), r) for r in (RECIPE, TrainingRecipe(optimizer="adam", **recipe))]
    for engine in engines:
        engine.step(0, random_step(0))

    muon, adam = (dict(engine.packed.model.named_parameters()) for engine in engines)
    same = {name for name in adam if torch.equal(muon[name], adam[name])}
    assert same == {name for name in adam if "proj" not in name}
    assert {t.name for t in engines[0].optimizer.parameters if t.second is None} == adam.keys() - same


def test_a_step_that_is_not_finite_changes_nothing_and_a_clipped_one_less() -> None:
    broken, clipped = Engine(tiny_model(), RECIPE), Engine(tiny_model(), RECIPE.model_copy(update={"clip": 1e-6}))
    before = [trained.weight.clone() for trained in broken.optimizer.parameters]
    broken.optimizer.parameters[0].weight[0] = float("nan")
    before[0][0] = float("nan")

    broken.step(0, random_step(0))
    clipped.step(0, random_step(0))

    pairs = zip(before, broken.optimizer.parameters, strict=True)
    assert all(torch.equal(old.nan_to_num(7), t.weight.nan_to_num(7)) for old, t in pairs)
    firsts = [t.first for t in clipped.optimizer.parameters if t.second is None and t.first is not None]
    assert firsts and 0 < float(torch.cat(firsts).norm()) < 1e-6


def test_several_ranks_are_refused() -> None:
    with pytest.raises(UserError, match="whole matrices"):
        Engine(tiny_model(), RECIPE, Ranks(0, 2))


def test_recipes_without_it_keep_their_identity() -> None:
    from skillmix.experiment.train_step import TrainStep

    step = TrainStep(name="a", stage="train", base="b", data=["./c"])

    assert "adam_learning_rate" in RecipeSettings.model_fields and "adam_learning_rate" not in step.decisive()
