"""The recipe of one training run, and the learning rate of each of its steps."""

import math

from skillmix.experiment.train_step import DEFAULT_GAMMA, DEFAULT_STEPS, MUON_ADAM_RATE, RecipeSettings


class TrainingRecipe(RecipeSettings):
    """A train step's settings, completed by the numbers that only its run knows."""

    steps: int = DEFAULT_STEPS
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    gamma: float = DEFAULT_GAMMA
    """Weight of the mean loss over replayed tokens; the mean over answer tokens has weight 1."""
    seed: int = 0
    trainings: int = 1
    """Trainings of this architecture that the process is to run, this one included; they share compiled layers."""

    @classmethod
    def of(cls, settings: RecipeSettings, *, steps: int, seed: int, trainings: int = 1) -> "TrainingRecipe":
        """The recipe of a train step, once its data are counted."""
        fields = {name: getattr(settings, name) for name in RecipeSettings.model_fields}
        gamma = settings.replay.gamma if settings.replay else 0.0
        return cls(**{**fields, "steps": steps, "gamma": gamma, "seed": seed, "trainings": trainings})

    @property
    def adam_share(self) -> float:
        """Learning rate of parameters that Adam updates beside Muon, as a multiple of Muon's."""
        return (self.adam_learning_rate or MUON_ADAM_RATE) / self.learning_rate if self.optimizer == "muon" else 1.0

    def rate_at(self, step: int) -> float:
        """Learning rate of a step, counted from 0: a linear warm-up that starts above zero, then the schedule.

        >>> recipe = TrainingRecipe(learning_rate=1.0, warmup_steps=4, steps=12, schedule="cosine")
        >>> [round(recipe.rate_at(step), 3) for step in (0, 1, 3, 4, 8, 11)]
        [0.25, 0.5, 1.0, 1.0, 0.5, 0.038]
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
