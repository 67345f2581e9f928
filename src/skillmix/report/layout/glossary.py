"""The glossary of the page: what each term of the tables means, and what each skill is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.novelty import ASSUMPTIONS
from skillmix.errors import UserError
from skillmix.grading.points import METRICS
from skillmix.report.records import SkillDefinition
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the tables."""

    name: str
    meaning: str

    @property
    def id(self) -> str:
        """The term's address on the page."""
        return "term-" + "".join(c if c.isalnum() else "-" for c in self.name)


_MEANINGS: Final[Mapping[str, str]] = {
    "student": "A model whose texts are graded; it may be a base, or tuned on data of a run.",
    "grader": "A model or code that gives the points. Both make mistakes: the report counts votes and disagreements, "
    "not truth.",
    "combination": "k skills and a topic, which one text must combine.",
    "k": "The number of skills that one text must show.",
    "setting": "The part of the catalogue that combinations are drawn from: train, held-out, or all of it.",
    "train": "Skills and topics that training texts may combine.",
    "held-out": "Topics that no training text is about, and skills that none combines with another. A training text "
    "with one skill may show a held-out skill.",
    **{metric.label: f"{metric.meaning[0].upper()}{metric.meaning[1:]}." for metric in METRICS.values()},
    "score": "The best text of each combination, and the mean over combinations whose texts are all graded.",
    "best of N": "A student writes N texts for each combination, and the best one counts. More tries give a higher "
    "score, so compare it only with scores of the same N.",
    "one try": "The mean over single texts, without choosing the best: what to expect of a student that writes once.",
    "interval": "At 95 %, over combinations: how the number varies with other combinations, not with another grader.",
    "too few": f"Fewer than {FEWEST_COMBINATIONS} combinations, or two seeds, give no reliable interval.",
    "p": "How often chance alone would give a difference as large as this one, if the students were equal.",
    "p, corrected": "p after Holm's correction for the number of comparisons; below .05 a difference counts as found, "
    "from .05 on as not found.",
    "within noise": "The 95 % interval of the difference includes 0, without a correction for the number of rows.",
    "ungraded": "A text whose grade cannot be read. It does not count as 0; the grader is asked again first.",
    "marker": "The word 'Answer:', after which a reply has the text to grade. A reply without the marker is graded as "
    "a whole, up to 'Explanation': it can still earn full marks, if all of it meets every criterion. An experiment can "
    "say that such a reply earns nothing. Either way it counts as a format failure.",
    "format failure": "A reply without the marker 'Answer:', or with an empty answer.",
    "format valid": "The share of texts with the marker and an answer after it, whatever skills they show.",
    "full marks among valid": "Full marks of the texts with a valid format, one try.",
    "woven full marks": "Full marks of texts that also show every skill about the topic, where code checks the skills.",
    "cut": "Texts whose reply ended at the token limit.",
    "follows an example": "Texts with half or more of the three-word runs of an example in the prompts.",
    "waiting": "Calls have begun, but none is with a model: replies are being saved, or a call waits before "
    "its next try.",
    "template baseline": "What fixed clauses, joined by code, earn on the same combinations.",
    "lineage": "The base, the data and the recipe of a tuned student, as the file beside its weights says.",
    "novelty bound": "How often a corpus would contain such a text by chance. It assumes that "
    + "; that ".join(ASSUMPTIONS)
    + ".",
    "scripted": "A simulated student or grader: code that follows a script, with rates of success set in advance. Its "
    "numbers test the pipeline and say nothing about a language model.",
}
TERMS: Final = tuple(Term(name, meaning) for name, meaning in _MEANINGS.items())


def definitions_of(
    catalogs: Iterable[tuple[str, Catalog, str | None]], skills: Iterable[str]
) -> dict[str, SkillDefinition]:
    """The definition of each skill, from runs given as name, catalogue and partition; the first catalogue counts."""
    listed = list(catalogs)
    found: dict[str, SkillDefinition] = {}
    for name in sorted(set(skills)):
        known = [(run, catalog, side) for run, catalog, side in listed if any(s.name == name for s in catalog.skills)]
        if known:
            skill = known[0][1].skill(name)
            sides = {run: _side(catalog, partition, name) for run, catalog, partition in known}
            found[name] = SkillDefinition(name, skill.category, skill.definition, skill.example, _sides(sides))
    return found


def _side(catalog: Catalog, partition: str | None, skill: str) -> str:
    try:
        sides = catalog.partition(partition)
    except UserError:
        return "unknown side"
    groups = (name for name in sides.settings[:-1] if skill in sides.side(name).skills)
    return next(groups, "neither train nor held-out")


def _sides(sides: Mapping[str, str]) -> str:
    """The side of a skill, with the runs where it differs between them."""
    if len(set(sides.values())) == 1:
        return next(iter(sides.values()))
    return ", ".join(f"{side} in {run}" for run, side in sides.items())
