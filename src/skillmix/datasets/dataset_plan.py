"""All inputs of a data set's folder except the texts."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from skillmix.catalog.catalog import Catalog
from skillmix.datasets.corpus import Corpus
from skillmix.datasets.kept_texts import Removal, removals
from skillmix.datasets.leakage import Bars
from skillmix.datasets.shown import ShownRule
from skillmix.experiment.recipes import DataRecipe, RequestChoice, ShownMode
from skillmix.prompts.prompt_set import load_prompts
from skillmix.prompts.rubric import FormatName


def prompt_examples(catalog: Catalog, prompt_sets: Iterable[str]) -> list[str]:
    """Return texts that a writer could copy: catalog examples, and the skills and answers of few-shot examples."""
    worked = [example for name in sorted(set(prompt_sets)) for example in load_prompts(name).examples]
    shown = [skill.example for example in worked for skill in example.skills]
    answers = [answer for example in worked for answer in example.answers]
    return [skill.example for skill in catalog.skills] + shown + answers


@dataclass(frozen=True)
class DatasetPlan:
    """The settings of a data set, and the rules that follow from them."""

    name: str
    recipe: DataRecipe
    catalog: Catalog
    partition: str | None
    bars: Bars
    names: str
    prompts: str
    near_duplicates: float | None
    validation: float
    keeps_exact_duplicates: bool = False
    keeps_example_copies: bool = False
    graders: tuple[str, ...] = ()
    decoding: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    """Prompt sets whose few-shot examples no text may repeat."""
    shown: ShownMode = "drop"
    only_requested: bool = False
    """Whether texts that show further skills are excluded."""
    requests: RequestChoice = "all"
    """The skills that the requests of the rows name."""
    output_format: FormatName | None = None
    """The output format that the prompts of the rows request."""

    @property
    def examples(self) -> list[str]:
        """Return examples of the prompts, which no answer may repeat unless the plan keeps such answers."""
        return prompt_examples(self.catalog, self.copied)

    def removals(self, corpus: Corpus) -> list[Removal]:
        """Return the texts that the plan excludes as copies."""
        return removals(
            corpus,
            examples=[] if self.keeps_example_copies else self.examples,
            threshold=self.near_duplicates,
            keeps_exact=self.keeps_exact_duplicates,
        )

    @cached_property
    def shown_rule(self) -> ShownRule:
        """Return the rule on skills that texts show."""
        return ShownRule(self.catalog, self.bars, self.shown, self.only_requested)
