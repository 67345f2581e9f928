"""Leakage rules: combinations that must not be trained on, and names of held-out skills in texts.

`Bars` contains the rules for one data set. `bars_for` and `evaluated` collect the combinations of evaluations.
`trained_combinations` serves the opposite purpose: it collects the training data that an evaluation must skip.
`NameFinder` searches the texts.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Final

from skillmix.catalog.catalog import Catalog, Partition, Side, before_parenthesis
from skillmix.catalog.combinations import Combination, combination_of, is_reserved
from skillmix.catalog.files import load_catalog
from skillmix.datasets.corpus import words_of
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, load_experiment
from skillmix.experiment.plan import Around, place_of, step_cells
from skillmix.experiment.step_base import Step, student_name
from skillmix.experiment.steps import DatasetStep, EvaluateStep, GenerateStep
from skillmix.files import LARGE, own_or_shipped, read_text
from skillmix.models.lineage import Lineage, other_partitions
from skillmix.models.lineage_files import read_dataset_file
from skillmix.render import plural
from skillmix.runs.run import Run
from skillmix.scores.lineages import lineage_of_student


@dataclass(frozen=True)
class Bars:
    """The leakage rules for one data set: content that it must not contain."""

    split: Partition
    evaluations: Mapping[str, str]
    """The ids of evaluated combinations, each with the step or file that evaluates the combination."""
    reserved: float
    """The share of skill sets that are reserved for evaluation."""
    groups: Mapping[str, Side] = field(default_factory=dict)
    """Groups from which the data set draws instead of the train side, by name."""

    @cached_property
    def topics(self) -> frozenset[str]:
        """Held-out topics."""
        return self.split.held_out_topics

    @cached_property
    def skills(self) -> frozenset[str]:
        """Held-out skills, which belong to a group other than `train`; a text with k = 1 may show one of them."""
        return self.split.never_composed

    def composes(self, skills: Set[str]) -> bool:
        """Return whether training texts may combine these skills."""
        return self.skills.isdisjoint(skills) or any(group.holds(skills) for group in self.groups.values())

    def leak_of(self, combination: Combination) -> str | None:
        """Return the rule that a combination breaks; None if it breaks none."""
        return next((rule for rule, breaks in _RULES.items() if breaks(self, combination)), None)

    def leak_shown(self, skills: Set[str]) -> str | None:
        """Return the rule that a text breaks if it shows these skills, requested or not; None if it breaks none."""
        if any(is_reserved(pair, self.reserved) for pair in combinations(sorted(skills), 2)):
            return RESERVED_PAIR
        held_out = self.skills & skills
        return TWO_HELD_OUT if len(held_out) > 1 and not self.composes(held_out) else None


EVALUATED: Final = "a combination of an evaluation"
WRITE_FOR_TRAINING: Final = (
    "Write texts for data sets with a dataset step, or with a generate step with "
    "purpose: training, whose combinations are separate from evaluations."
)
RESERVED_PAIR: Final = "shows a reserved pair"
RESERVED_SET: Final = "a reserved skill set"
TWO_HELD_OUT: Final = "shows two held-out skills"
_RULES: Final[Mapping[str, Callable[[Bars, Combination], bool]]] = {
    "a held-out topic": lambda bars, c: c.topic in bars.topics and not (c.k == 1 and bars.split.any_topic_at_one),
    "a held-out skill at k > 1": lambda bars, c: c.k > 1 and not bars.composes(set(c.skills)),
    EVALUATED: lambda bars, c: c.id in bars.evaluations,
    RESERVED_SET: lambda bars, c: is_reserved(c.skills, bars.reserved),
}


def refuse_leaks(chosen: Iterable[Combination], bars: Bars) -> None:
    """Raise an error if a combination must not be trained on, with a count and an example for every broken rule."""
    leaks = [(rule, combination) for combination in chosen if (rule := bars.leak_of(combination)) is not None]
    counts, examples = Counter(rule for rule, _ in leaks), dict(reversed(leaks))
    parts = []
    for rule in (rule for rule in _RULES if counts[rule]):
        example = examples[rule]
        where = f", in {bars.evaluations[example.id]}" if example.id in bars.evaluations else ""
        parts.append(f"{counts[rule]} with {rule} ({'; '.join(example.skills)} on {example.topic}{where})")
    if parts:
        raise UserError(
            f"The data set would leak: {plural(len(leaks), 'text')} must not be trained on: {'; '.join(parts)}. "
            "Nothing was written.",
            hint=WRITE_FOR_TRAINING if set(counts) == {EVALUATED} else "A recipe such as D(1,2) excludes such texts.",
        )


def bars_for(step: DatasetStep, experiment: Experiment, catalog: Catalog, run: Run) -> Bars:
    """Return the leakage rules for a data set in an experiment.

    An existing data set keeps its members, and so does a data set that joins it. This holds even if an evaluation in
    the experiment has grown since, because the evaluation skips these members.
    """
    leakage = step.leakage or experiment.leakage
    evaluations = evaluated(experiment, catalog, usable_around(experiment, catalog, run.excluded))
    for name in (step.name, *step.of):
        file = read_dataset_file(run.step(name) / "dataset")
        for member in file.combinations if file else ():
            evaluations.pop(member, None)
    for name in leakage.evaluations:
        for combination in combinations_in(own_or_shipped(name)):
            evaluations.setdefault(combination, name)
    place = place_of(step, experiment, catalog)
    pools = {name: place.catalog.pool(name, partition=place.partition.name) for name in pools_of(step, experiment)}
    return Bars(place.partition, evaluations, leakage.reserved, pools)


def pools_of(step: DatasetStep, experiment: Experiment) -> tuple[str, ...]:
    """Return the additional groups that a data set draws from, including the groups of the data sets that it joins."""
    joined = [s for s in experiment.steps if isinstance(s, DatasetStep) and s.name in step.of]
    own = (step.pool,) if step.pool else ()
    return tuple(dict.fromkeys([*own, *(name for source in joined for name in pools_of(source, experiment))]))


def evaluated(experiment: Experiment, catalog: Catalog, around: Around | None = None) -> dict[str, str]:
    """Return the ids of combinations that an experiment draws for evaluation, each with its step.

    A generate step draws the combinations of an evaluation unless its purpose is training.
    """
    steps_by_id: dict[str, str] = {}
    for step in experiment.steps:
        for combination in _evaluated_by(step, experiment, catalog, around or {}):
            steps_by_id.setdefault(combination, f"{step.stage} step {step.name} of {experiment.name}")
    return steps_by_id


def _evaluated_by(step: Step, experiment: Experiment, catalog: Catalog, around: Around) -> dict[str, None]:
    """Return the ids of the combinations that one step draws for evaluation, in the order of its draws."""
    if not isinstance(step, EvaluateStep | GenerateStep) or getattr(step, "purpose", "evaluation") != "evaluation":
        return {}
    # Every student has the same draw, so one student is enough.
    cells = step_cells(step.model_copy(update={"students": step.students[:1]}), experiment, catalog, around)
    return {combination.id: None for cell in cells for combination in cell.combinations}


def combinations_in(path: Path) -> list[str]:
    """Return the ids of combinations in an experiment file, a `combinations --json` output or a JSON Lines file."""
    if not path.is_file():
        raise UserError(f"There is no file {str(path)!r}.", hint="Correct the path in leakage.evaluations.")
    if path.suffix in (".yaml", ".yml"):
        experiment = load_experiment(path)
        return list(evaluated(experiment, load_catalog(experiment.catalog, *experiment.other_catalogs)))
    text = read_text(path, most=LARGE)
    try:
        documents = (
            json.loads(text) if path.suffix == ".json" else [json.loads(x) for x in text.split("\n") if x.strip()]
        )
        ids = []
        for document in documents:
            skills, topic = document["skills"], document["topic"]
            # A name that is not a string would lead to an id that excludes nothing.
            if not isinstance(skills, list) or not all(isinstance(name, str) and name for name in [*skills, topic]):
                raise ValueError("a name is not a string")
            ids.append(combination_of(skills, topic).id)
        return ids
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(
            f"{path} contains no combinations.",
            hint='It must be an experiment file, or JSON: [{"skills": […], "topic": …}], or one such object per line.',
        ) from None


def trained_combinations(
    step: EvaluateStep | GenerateStep, experiment: Experiment, catalog: Catalog, around: Around
) -> dict[str, str]:
    """Return the combinations that the draws of a step must skip, each with a student that was trained on it.

    Draws continue to skip the combinations that they already skip, so that a changed list of students affects as few
    combinations as possible. If too few combinations would remain, the draws skip only the training data of the current
    students.
    """
    trained = {c: name for name, lineage in _lineages(step, experiment).items() for c in lineage.combinations}

    def skipped_from(before: frozenset[str]) -> dict[str, str]:
        skipped = {c: trained.get(c, "another student") for c in before}
        while trained:
            drawn = _evaluated_by(step, experiment, catalog, {step.name: frozenset(skipped)})
            more = {c: trained[c] for c in drawn if c in trained}
            if not more:
                break
            skipped |= more
        return skipped

    try:
        return skipped_from(around.get(step.name, frozenset()))
    except UserError:
        return skipped_from(frozenset())


def usable_around(experiment: Experiment, catalog: Catalog, around: Around) -> Around:
    """Return the skipped combinations; omit steps with allow_trained or with too few remaining combinations."""
    usable = dict(around)
    for step in experiment.steps:
        if step.name in around:
            is_usable = not (isinstance(step, EvaluateStep) and step.allow_trained)
            try:
                is_usable = is_usable and _evaluated_by(step, experiment, catalog, around) is not None
            except UserError:
                is_usable = False
            if not is_usable:
                del usable[step.name]
    return usable


def _lineages(step: EvaluateStep | GenerateStep, experiment: Experiment) -> dict[str, Lineage]:
    """Return the lineages of a step's tuned students."""
    students = [student_name(reference) for reference in step.students]
    lineages = {name: lineage_of_student(experiment, name, {}) for name in students if name in experiment.students}
    return {name: lineage for name, lineage in lineages.items() if lineage is not None}


def refuse_other_partitions(step: EvaluateStep, experiment: Experiment, catalog: Catalog) -> None:
    """Raise an error if a student's data was made under another partition, and thus mixes the sides of this one."""
    if step.allow_trained or set(step.settings) == {"all"}:
        return  # every partition draws the same combinations with this setting
    place = place_of(step, experiment, catalog)
    here, names = place.partition.name, {step.catalog or experiment.catalog, place.catalog.name}
    for student, lineage in _lineages(step, experiment).items():
        others = sorted(other_partitions(lineage, here, names))
        if others:
            raise UserError(
                f"{student} was trained on data of the partition {', '.join(others)}, but step {step.name} evaluates "
                f"under {here}: the data may contain skills that {here} holds out.",
                hint=f"Set partition: {others[0]}, or set allow_trained: true; the scores then state how many "
                "combinations have skills that the student saw together.",
            )


class NameFinder:
    """Finds names of held-out skills in texts that show other skills."""

    def __init__(self, skills: Iterable[str]) -> None:
        self._by_first: dict[str, list[tuple[str, str]]] = {}
        for skill in skills:
            if words := words_of(before_parenthesis(skill)):
                self._by_first.setdefault(words[0], []).append((skill, f" {' '.join(words)} "))

    def names_in(self, text: str) -> set[str]:
        """Return the skills whose names occur in a text."""
        words = words_of(text)
        spoken, firsts = f" {' '.join(words)} ", self._by_first.keys() & set(words)
        return {skill for first in firsts for skill, name in self._by_first[first] if name in spoken}


@dataclass(frozen=True, slots=True)
class NamedSkill:
    """A held-out skill whose name occurs in texts that show other skills."""

    skill: str
    where: str
    """The place of the name: 'definition of …', 'example of …' or 'answers'."""
    texts: int


def names_inside(
    texts: Iterable[tuple[Combination, Sequence[str]]], catalog: Catalog, held_out: Iterable[str]
) -> list[NamedSkill]:
    """Count the texts that name other held-out skills, directly or in the definitions and examples of their skills."""
    finder = NameFinder(held_out)
    counts: Counter[tuple[str, str]] = Counter()
    shown: Counter[str] = Counter()
    for combination, replies in texts:
        shown.update(combination.skills)
        for name in finder.names_in("\n".join(replies)) - set(combination.skills):
            counts[name, "answers"] += 1
    for skill in catalog.skills:
        for part, text in {"definition": skill.definition, "example": skill.example}.items():
            for name in finder.names_in(text) - {skill.name} if shown[skill.name] else ():
                counts[name, f"{part} of {skill.name}"] += shown[skill.name]
    return [NamedSkill(skill, where, count) for (skill, where), count in sorted(counts.items())]


def refuse_names(named: Sequence[NamedSkill]) -> None:
    """Raise an error if any text contains the name of a held-out skill."""
    if named:
        examples = "; ".join(f"{n.skill} in the {n.where} ({plural(n.texts, 'text')})" for n in named[:5])
        more = f" and {len(named) - 5} more" if len(named) > 5 else ""
        raise UserError(
            f"Texts that show other skills name held-out skills: {examples}{more}. Nothing was written.",
            hint="To only report them in the card, set leakage.names to `list`.",
        )
