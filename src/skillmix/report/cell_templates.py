"""Measure how far the texts with full marks are templates, and what a student that writes only templates would earn."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.checkers.judge import Judge
from skillmix.checkers.template_student import FORMS, Form, TemplateStudent
from skillmix.datasets.corpus import corpus_of, distinct_share
from skillmix.grading.ballots import Ballot, StudentText
from skillmix.grading.points import FULL_MARKS, Points, text_score
from skillmix.report.pieces.run_piece import CodeEvidence
from skillmix.report.records import CellTemplates, TemplateBaseline
from skillmix.runs.judging.ordered_work import OrderedWork
from skillmix.runs.judging.worker_pool import code_of_worker, shared_pool
from skillmix.runs.reading.graded_conversations import ConversationKey
from skillmix.runs.rules_grader import judge_of
from skillmix.scores.cells import Cell

MOST_BASELINE: Final = 200
"""The combinations of each setting and k that the template student writes about."""
RUN: Final = 4
FOR_A_WORKER: Final = 500
"""Texts of the template student for each worker that is started, because starting one takes as long as judging them."""


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
    some = {key: list(drawn.values())[:MOST_BASELINE] for key, drawn in combinations.items()}
    parts = [_Part(catalog.templates, form, drawn) for drawn in some.values() for form in FORMS]
    found = _outcomes_of(parts, catalog)
    for setting, k in some:
        outcomes = {form: next(found) for form in FORMS}
        if all(outcomes.values()):
            full, woven = (
                {form: sum(pair[part] for pair in pairs) / len(pairs) for form, pairs in outcomes.items()}
                for part in (0, 1)
            )
            yield TemplateBaseline(run, setting, k, len(outcomes["fixed"]), full, woven)


class _Part(NamedTuple):
    """Combinations that the template student writes about in one form."""

    templates: Mapping[str, Mapping[str, str]]
    form: Form
    combinations: Sequence[Combination]


_Outcome = tuple[bool, bool]
"""Full marks, and full marks with all skills woven."""


def _outcomes_of(parts: Sequence[_Part], catalog: Catalog) -> Iterator[list[_Outcome]]:
    """The outcomes of each part, in order; on all cores if there is much to judge."""
    judge = judge_of(catalog)
    pool = shared_pool(catalog)
    workers = 0 if pool is None else min(pool.size, sum(len(part.combinations) for part in parts) // FOR_A_WORKER)
    if pool is None or not workers:
        return (_outcomes(part, judge) for part in parts)
    work = OrderedWork(pool, there=_outcomes_there, here=lambda part: _outcomes(part, judge))
    return work.results(parts, workers=workers)


def _outcomes_there(part: _Part) -> list[_Outcome]:
    return _outcomes(part, code_of_worker().judge)


def _outcomes(part: _Part, judge: Judge) -> list[_Outcome]:
    """The outcome of each combination whose skills all have a clause."""
    student = TemplateStudent(part.templates, judge)
    outcomes = []
    for combination in part.combinations:
        written = student.write(combination.skills, combination.topic, part.form)
        if written is not None:
            is_full = written.has_full_marks
            outcomes.append((is_full, is_full and written.verdict.is_woven(combination.skills) is True))
    return outcomes
