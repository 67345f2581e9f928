"""Check the skills that a data set's texts show, requested or not, as far as code can tell.

`skills_shown` runs the checkers of a catalog on a text. `ShownRule` decides whether the text may be trained on.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.catalog.own_code import OwnCode, require_trust, trusted_codes
from skillmix.checkers.passage import passage_of
from skillmix.checkers.registry import checker_of
from skillmix.datasets.kept_texts import KeptText
from skillmix.datasets.leakage import Bars
from skillmix.errors import UserError
from skillmix.experiment.recipes import ShownMode
from skillmix.render import shortened
from skillmix.runs.verdicts import RulesGrader, on_all_cores

NOT_REQUESTED: Final = "shows a skill that was not requested"


def skills_shown(text: str, skills: tuple[str, ...]) -> frozenset[str]:
    """Return the skills, out of those with a checker, that code finds in a text."""
    return _found(text, skills, trusted_codes())


@lru_cache(maxsize=1 << 17)
def _found(text: str, skills: tuple[str, ...], codes: tuple[OwnCode, ...]) -> frozenset[str]:
    """Cached for dataset steps, which check their texts again in every joined set."""
    passage = passage_of(text)
    checkers = ((skill, checker_of(skill)) for skill in skills)
    return frozenset(skill for skill, checker in checkers if checker is not None and checker(passage) is not None)


def _shown_there(code: RulesGrader, asked: tuple[str, tuple[str, ...]]) -> frozenset[str]:
    """Return the skills that a text shows, in any process: the grader passed to it contains the catalog's own code."""
    return skills_shown(*asked)


@dataclass(frozen=True)
class ShownRule:
    """Decides by the skills that a text shows whether a data set may contain it."""

    catalog: Catalog
    bars: Bars
    mode: ShownMode
    only_requested: bool
    """Whether a text may show no skill of the partition besides the requested ones."""

    @cached_property
    def checkable(self) -> tuple[str, ...]:
        """Return the skills of the catalog that have a checker; its own code must be trusted."""
        require_trust(self.catalog.code)
        return tuple(skill.name for skill in self.catalog.skills if checker_of(skill.name) is not None)

    def forbids(self, combination: Combination) -> bool:
        """Whether every text with these skills would be excluded, so that none should be written."""
        skills = frozenset(combination.skills).intersection(self.checkable)
        return self.mode != "count" and self.bars.leak_shown(skills) is not None

    def reason_to_drop(self, kept: KeptText) -> str | None:
        """Return the reason to exclude a text; None if it may stay."""
        return self._reason(kept, skills_shown(kept.text, self.checkable)) if self._drops_texts else None

    @property
    def _drops_texts(self) -> bool:
        """Whether any text can be excluded, so that texts need to be checked."""
        return bool(self.checkable) and (self.mode == "drop" or self.only_requested)

    def _reason(self, kept: KeptText, shown: frozenset[str]) -> str | None:
        leak = self.bars.leak_shown(shown) if self.mode == "drop" else None
        further = shown.difference(kept.combination.skills) & (self.bars.skills | self.bars.train_skills)
        return NOT_REQUESTED if leak is None and self.only_requested and further else leak

    def leaks_in(self, text: str) -> bool:
        """Whether the rule excludes a text that shows a reserved pair or two held-out skills."""
        if self.mode == "count" or not self.checkable:
            return False
        return self.bars.leak_shown(skills_shown(text, self.checkable)) is not None

    def without_leaks(self, texts: Sequence[KeptText]) -> tuple[Sequence[int], dict[str, int]]:
        """Return the indices of the texts that may stay, and the number of the others by reason."""
        if not self._drops_texts:
            return range(len(texts)), {}
        staying, dropped = [], Counter[str]()
        wanted = ((kept.text, self.checkable) for kept in texts)
        shown = on_all_cores(_shown_there, wanted, self.catalog, RulesGrader(self.catalog))
        for index, (kept, skills) in enumerate(zip(texts, shown, strict=True)):
            reason = self._reason(kept, skills)
            if reason is None:
                staying.append(index)
            else:
                dropped[reason] += 1
        return staying, dict(dropped)

    def leaks(self, texts: Iterable[KeptText]) -> dict[str, int]:
        """Count the texts of a data set with forbidden content; with `refuse` such a text is an error."""
        if self.mode == "drop" or not self.checkable:
            return {}
        counts: Counter[str] = Counter()
        example = ""
        for kept in texts:
            leak = self.bars.leak_shown(skills_shown(kept.text, self.checkable))
            if leak is not None:
                counts[leak] += 1
                example = example or kept.text
        if counts and self.mode == "refuse":
            broken = "; ".join(
                f"{count} text {leak}" if count == 1 else f"{count} texts {leak.replace('shows', 'show', 1)}"
                for leak, count in sorted(counts.items())
            )
            raise UserError(
                f"The data set would leak, because of skills that its texts show: {broken}, such as "
                f"{shortened(example)!r}. "
                "Nothing was written.",
                hint="Set leakage.shown to drop to exclude such texts, or to count to keep and count them.",
            )
        return dict(sorted(counts.items()))
