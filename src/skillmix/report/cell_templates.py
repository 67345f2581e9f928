"""Measure how far the texts with full marks are templates, and what a student that writes only templates would earn."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.checkers.template_student import FORMS, Form, TemplateStudent
from skillmix.datasets.corpus import corpus_of, distinct_share
from skillmix.grading.ballots import Ballot, StudentText
from skillmix.grading.points import FULL_MARKS, Points, text_score
from skillmix.report.archived_calls import CodeEvidence
from skillmix.report.records import CellTemplates, TemplateBaseline
from skillmix.runs.reading.graded_conversations import ConversationKey
from skillmix.runs.rules_grader import judge_of
from skillmix.scores.cells import Cell

MOST_BASELINE: Final = 200
"""The combinations of each setting and k that the template student writes about."""
RUN: Final = 4


def cell_templates(
    cells: Iterable[Cell],
    decided: Sequence[tuple[Ballot, Points]],
    evidence: Mapping[ConversationKey, CodeEvidence],
    *,
    all_generations: bool,
) -> Iterator[CellTemplates]:
    """The counts of every cell; `all_generations` also takes texts beyond those that the experiment plans."""
    full: dict[tuple[str, str, str], list[StudentText]] = defaultdict(list)
    for ballot, points in decided:
        if text_score(points, FULL_MARKS) == 1.0:
            text = ballot.text
            full[text.student, text.combination.id, ballot.grader].append(text)
    for cell in cells:
        _, student, grader, _, _ = cell.key
        texts = [
            text
            for combination, planned in zip(cell.combinations, cell.points, strict=True)
            for text in full.get((student, combination.id, grader), ())
            if all_generations or text.generation < len(planned)
        ]
        distinct = distinct_share(corpus_of(text.answer.text for text in texts), RUN)
        yield CellTemplates(cell.key, len(texts), _repeated(texts, evidence), distinct)


def _repeated(texts: Sequence[StudentText], evidence: Mapping[ConversationKey, CodeEvidence]) -> int | None:
    """The texts whose masked evidence for each skill is that of a text on another combination."""
    if not texts or any(None in _masked(text, evidence).values() for text in texts):
        return None
    users: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    for text in texts:
        for shown in _masked(text, evidence).items():
            users[shown].add(text.combination.id)
    return sum(all(len(users[shown]) > 1 for shown in _masked(text, evidence).items()) for text in texts)


def _masked(text: StudentText, evidence: Mapping[ConversationKey, CodeEvidence]) -> dict[str, str | None]:
    skills = text.combination.skills
    found = evidence.get(text.conversation)
    return dict(zip(skills, found.masked if found else (None,) * len(skills), strict=True))


def template_baselines(run: str, catalog: Catalog | None, cells: Iterable[Cell]) -> Iterator[TemplateBaseline]:
    """What the template student earns for each setting and k of a run.

    Nothing if the catalogue has no clauses, or has code of its own that is not trusted.
    """
    if catalog is None or not catalog.templates or (catalog.code is not None and not catalog.code.is_trusted):
        return
    combinations: dict[tuple[str, int], dict[str, Combination]] = defaultdict(dict)
    for cell in cells:
        combinations[cell.key.setting, cell.key.k].update((c.id, c) for c in cell.combinations)
    some = {key: list(own.values())[:MOST_BASELINE] for key, own in combinations.items()}
    student = TemplateStudent(catalog.templates, judge_of(catalog))
    for (setting, k), drawn in some.items():
        outcomes = {form: _outcomes(student, form, drawn) for form in FORMS}
        if all(outcomes.values()):
            full, woven = (
                {form: sum(pair[part] for pair in pairs) / len(pairs) for form, pairs in outcomes.items()}
                for part in (0, 1)
            )
            yield TemplateBaseline(run, setting, k, len(outcomes["fixed"]), full, woven)


def _outcomes(student: TemplateStudent, form: Form, combinations: Iterable[Combination]) -> list[tuple[bool, bool]]:
    """Full marks, and full marks with all skills woven, of each combination whose skills all have a clause."""
    outcomes = []
    for combination in combinations:
        written = student.write(combination.skills, combination.topic, form)
        if written is not None:
            is_full = written.has_full_marks
            outcomes.append((is_full, is_full and written.verdict.is_woven(combination.skills) is True))
    return outcomes
