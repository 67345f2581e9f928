"""The settings that determine the content of a data set, and the rule about skills that texts show.

`skills_shown` runs the checkers of a catalog on a text. `ShownRule` uses the skills that they find, requested or not,
to decide whether the text may be trained on.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

from skillmix.catalog.catalog import Catalog, Figure, remembered_figures
from skillmix.catalog.combinations import Combination
from skillmix.catalog.own_code import OwnCode, require_trust, trusted_codes
from skillmix.datasets.copies import KeptText, Removal, removals
from skillmix.datasets.corpus import Corpus
from skillmix.datasets.leakage import Bars
from skillmix.errors import UserError
from skillmix.experiment.recipes import DataRecipe, RequestChoice, ShownMode
from skillmix.prompts.prompt_set import load_prompts
from skillmix.prompts.rubric import FormatName
from skillmix.render import shortened
from skillmix.runs.verdicts import has_checker

if TYPE_CHECKING:
    from skillmix.checkers.passage import Checker

NOT_REQUESTED: Final = "shows a skill that was not requested"


def skills_shown(text: str, skills: tuple[str, ...]) -> frozenset[str]:
    """Return the skills that checkers find in a text; skills without a checker are skipped."""
    return _found(text, skills, trusted_codes())


@lru_cache(maxsize=1 << 17)
def _found(text: str, skills: tuple[str, ...], codes: tuple[OwnCode, ...]) -> frozenset[str]:
    """Return the skills found in a text.

    The result is cached, because dataset steps check texts again in every joined set.
    """
    from skillmix.checkers.passage import passage_of

    passage = passage_of(text)
    checkers = _checkers(skills, codes, remembered_figures())
    return frozenset(skill for skill, checker in checkers if checker(passage) is not None)


@lru_cache(maxsize=4)
def _checkers(
    skills: tuple[str, ...], codes: tuple[OwnCode, ...], figures: tuple[Figure, ...]
) -> list[tuple[str, "Checker"]]:
    """Return the skills that have a checker, with their checkers; the code and figures only serve as cache keys."""
    from skillmix.checkers.registry import checker_of

    checkers = ((skill, checker_of(skill)) for skill in skills)
    return [(skill, checker) for skill, checker in checkers if checker is not None]


@dataclass(frozen=True)
class ShownRule:
    """Decides whether a data set may contain a text, based on the skills that the text shows."""

    catalog: Catalog
    bars: Bars
    mode: ShownMode
    only_requested: bool
    """Whether a text may show only the requested skills, apart from skills outside the partition."""

    @cached_property
    def checkable(self) -> tuple[str, ...]:
        """Return the skills in the catalog that have a checker; the catalog's own code must be trusted."""
        require_trust(self.catalog.code)
        return tuple(skill.name for skill in self.catalog.skills if has_checker(skill.name))

    @cached_property
    def _is_applied(self) -> bool:
        """Return whether the rule could exclude any text, so that texts need to be checked."""
        return bool(self.checkable) and (self.mode == "drop" or self.only_requested)

    @cached_property
    def _of_partition(self) -> frozenset[str]:
        return frozenset(self.bars.split.side("all").skills)

    def forbids(self, combination: Combination) -> bool:
        """Return whether every text with these skills would be excluded, so that none should be written."""
        skills = frozenset(combination.skills).intersection(self.checkable)
        return self.mode != "count" and self.bars.leak_shown(skills) is not None

    def leak_in(self, text: str) -> str | None:
        """Return the rule that is broken by the skills that checkers find in a text; None if no rule is broken."""
        return self.bars.leak_shown(skills_shown(text, self.checkable)) if self.checkable else None

    def reason_to_drop(self, kept: KeptText) -> str | None:
        """Return why a text must be excluded; None if it may stay."""
        if not self._is_applied:
            return None
        shown = skills_shown(kept.text, self.checkable)
        leak = self.bars.leak_shown(shown) if self.mode == "drop" else None
        further = shown.difference(kept.combination.skills) & self._of_partition
        return NOT_REQUESTED if leak is None and self.only_requested and further else leak

    def without_leaks(self, texts: Sequence[KeptText]) -> tuple[Sequence[int], dict[str, int]]:
        """Return the indices of the texts that may stay, and the number of excluded texts by reason."""
        reasons = [self.reason_to_drop(kept) for kept in texts]
        staying = [index for index, reason in enumerate(reasons) if reason is None]
        return staying, dict(Counter(reason for reason in reasons if reason is not None))

    def leaks(self, texts: Sequence[KeptText]) -> dict[str, int]:
        """Count the texts in a data set that show forbidden content; with `refuse`, such a text raises an error."""
        if self.mode == "drop":
            return {}
        leaking = [(leak, kept.text) for kept in texts if (leak := self.leak_in(kept.text)) is not None]
        counts = dict(sorted(Counter(leak for leak, _ in leaking).items()))
        if counts and self.mode == "refuse":
            broken = "; ".join(
                f"{count} text {leak}" if count == 1 else f"{count} texts {leak.replace('shows', 'show', 1)}"
                for leak, count in counts.items()
            )
            raise UserError(
                f"The data set would leak, because of skills that its texts show: {broken}, such as "
                f"{shortened(leaking[0][1])!r}. Nothing was written.",
                hint="To exclude such texts, set leakage.shown to `drop`; to keep and count them, set it to `count`.",
            )
        return counts


def prompt_examples(catalog: Catalog, prompt_sets: Iterable[str]) -> list[str]:
    """Return texts that a writer could copy: examples in the catalog, and skills and answers in few-shot examples."""
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
    bars: Bars
    names: str
    prompts: str
    near_duplicates: float | None
    validation: float
    keeps_exact_duplicates: bool = False
    keeps_example_copies: bool = False
    decoding: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    """Prompt sets whose few-shot examples no text may repeat."""
    shown: ShownMode = "drop"
    only_requested: bool = False
    """Whether texts that show additional skills are excluded."""
    requests: RequestChoice = "all"
    """Whether the requests in the rows name all skills of a text, or only one."""
    output_format: FormatName | None = None
    """The output format that the prompts in the rows request."""

    @property
    def examples(self) -> list[str]:
        """Return the examples in the prompts, which no answer may repeat unless the plan keeps such answers."""
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
        """Return the rule about skills that texts show."""
        return ShownRule(self.catalog, self.bars, self.shown, self.only_requested)
