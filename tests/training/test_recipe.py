"""The recipe of a run: a train step's settings and nothing else."""

from skillmix.experiment.train_step import RecipeSettings, ReplaySettings
from skillmix.training.step.optimizer import TrainingRecipe


def test_a_recipe_has_the_settings_of_its_step() -> None:
    replay = ReplaySettings(sources=["text.txt"], gamma=0.3)
    settings = RecipeSettings(epochs=2, batch=8, clip=1.0, precision="fp32", replay=replay)

    recipe = TrainingRecipe.of(settings, steps=17, seed=5)

    assert (recipe.steps, recipe.seed, recipe.gamma) == (17, 5, 0.3)
    assert {name for name in RecipeSettings.model_fields if getattr(recipe, name) != getattr(settings, name)} == {
        "steps"
    }


def test_without_replay_its_loss_weighs_nothing() -> None:
    assert TrainingRecipe.of(RecipeSettings(), steps=1, seed=0).gamma == 0.0


def test_the_default_weight_of_replay_exists_once() -> None:
    assert TrainingRecipe().gamma == ReplaySettings(sources=["text.txt"]).gamma == 0.5
