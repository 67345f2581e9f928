"""Dataset steps of an experiment, and what no data set may hold."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from skillmix.errors import UserError
from skillmix.experiment.recipes import DataRecipe, plain_recipe, recipe_named
from skillmix.experiment.sections import ModelRef, Name, NamedStep, Positive, Section, Share

_TRIES_FOR_A_TEXT = 100


class PerSkill(Section):
    """How evenly the texts of each k spread over skills."""

    floor: Annotated[int, Field(ge=0)] = 0
    """Texts that every skill should have at least; reported where it cannot be met."""
    ceiling: Positive | None = None
    """Texts that no skill has more of."""

    @model_validator(mode="after")
    def _ordered(self) -> "PerSkill":
        if self.ceiling is not None and self.floor > self.ceiling:
            raise ValueError(f"floor {self.floor} is above ceiling {self.ceiling}")
        return self


class LeakageSettings(Section):
    """What stops an export, besides held-out topics and skills."""

    evaluations: list[str] = []
    """Files with combinations of evaluations elsewhere: `combinations --json`, JSON lines, or experiment files."""
    names: Literal["list", "strict"] = "list"
    """Whether a held-out skill's name inside other texts is only listed, or stops the export."""
    reserved: Share = 0.2
    """Share of the skill sets of k = 2 and more that are in no data set, whatever the topic."""


class DatasetStep(NamedStep):
    """Conversations with full marks: written to a target, or joined from earlier data sets."""

    stage: Literal["dataset"]
    writer: ModelRef | None = None
    """Who writes; without one, the step joins what `of` names."""
    of: list[Name] = []
    """Earlier dataset steps whose texts are joined."""
    graders: list[Name] = []
    """A text is kept if it has full marks from every one of them."""
    recipe: str | None = None
    """A set of the paper: `D(1)`, `D(1,2)`, `D(1,2,3)`, …, or `ablation`."""
    k: list[Positive] = []
    skills: Literal["train", "all"] | None = None
    """Skills of k = 1; above it always those of the train side. `all` in recipes, else `train`."""
    target: Positive | dict[Positive, Positive] | None = None
    """Texts to keep for each k."""
    most: Positive | None = None
    """Conversations to write for each k at most; 100 for each text of the target if not given."""
    least: Annotated[int, Field(ge=0)] | None = None
    """Texts of each k that are enough for later steps to begin; the whole target if not given."""
    generations: Positive = 1
    """Tries of a combination before the next one; all combinations used up, it starts over with as many more."""
    per_skill: PerSkill = PerSkill()
    size: Positive | None = None
    """Texts in the set; a smaller one is part of a larger one. All of them if not given."""
    shares: dict[Positive, Annotated[float, Field(gt=0)]] = {}
    """Parts of each k in a set of a given size; as they come if not given."""
    prompts: str | None = None
    """Prompt set in the data; the experiment's if not given."""
    near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = 0.7
    """Share of common three-word runs from which on a text repeats an earlier one; null keeps all but exact copies."""
    validation: Share = 0.05
    """Share of the combinations whose texts are for validation."""

    @model_validator(mode="after")
    def _written_or_joined(self) -> "DatasetStep":
        if (self.writer is None) == (not self.of):
            raise ValueError("a data set is written by a writer or joined by `of`: give one of them")
        if self.writer is not None and not (self.graders and self.target and (self.k or self.recipe)):
            raise ValueError("a writer needs graders, a target, and k or a recipe")
        if self.of and any((self.target is not None, self.graders, self.most is not None, self.least is not None)):
            raise ValueError(
                "what is joined is written and graded already: graders, target, most and least do not apply"
            )
        if self.recipe is not None and (self.k or self.shares):
            raise ValueError("a recipe says which k: k and shares do not apply")
        if self.shares and self.size is None:
            raise ValueError("shares need a size")
        targets = self.target.values() if isinstance(self.target, dict) else [self.target or 0]
        if self.least is not None and self.least > max(targets):
            raise ValueError(f"least {self.least} is above the target")
        return self._with_known_recipe()

    def _with_known_recipe(self) -> "DatasetStep":
        try:
            ks = self.chosen.ks
        except UserError as error:
            raise ValueError(f"{error.message} {error.hint}") from None
        targets = set(self.target) if isinstance(self.target, dict) else set()
        if targets and targets != set(ks):
            raise ValueError(f"target names k = {sorted(targets)}, the data set k = {sorted(ks)}")
        if self.shares and ks and set(self.shares) != set(ks):
            raise ValueError(f"shares name k = {sorted(self.shares)}, the data set k = {sorted(ks)}")
        return self

    @property
    def chosen(self) -> DataRecipe:
        """The recipe, whichever way it was told."""
        if self.recipe is not None:
            return recipe_named(self.recipe, size=self.size, skills=self.skills)
        ks = tuple(dict.fromkeys(self.k or self.shares))
        return plain_recipe(ks, size=self.size, skills=self.skills, shares=self.shares)

    def most_of(self, k: int) -> int:
        """Conversations of one k at most."""
        return self.most or _TRIES_FOR_A_TEXT * self.target_of(k)

    def target_of(self, k: int) -> int:
        """Texts to keep of one k."""
        return self.target[k] if isinstance(self.target, dict) else self.target or 0
