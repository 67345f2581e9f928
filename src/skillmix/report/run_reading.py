"""One run, read once for a report: cells, checks of its graders, lineage; its calls go to the archive on the way."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.experiment.experiment import Experiment
from skillmix.grading.ballots import Ballot
from skillmix.grading.points import FULL_MARKS, Points
from skillmix.models.lineage import DatasetFacts, Lineage
from skillmix.report.archive import Archive, ArchivedRun, RunArchive
from skillmix.report.cell_templates import cell_templates, template_baselines
from skillmix.report.followed_examples import followed_examples, texts_following_examples
from skillmix.report.layout.origin import decoding_in_words
from skillmix.report.pieces.call_counter import CallCounter
from skillmix.report.pieces.cycles import without_cycle_search
from skillmix.report.pieces.pieces_in_order import run_pieces
from skillmix.report.pieces.run_piece import CodeEvidence
from skillmix.report.records import CellTemplates, FollowedExamples, RunFacts, Shown, TemplateBaseline
from skillmix.runs.finished.manifest import read_invocations
from skillmix.runs.reading.call_totals import CallTotals, call_totals
from skillmix.runs.reading.conversation_index import combinations_of
from skillmix.runs.reading.graded_conversations import ConversationKey
from skillmix.runs.reading.marks import MarkTable, is_large, run_marks
from skillmix.runs.reading.run_records import RecordsBuilder, RunRecords
from skillmix.runs.run import Run
from skillmix.runs.seconds.kept_seconds import StepSeconds
from skillmix.runs.seconds.step_meter import shown_seconds
from skillmix.runs.students import has_settings, run_datasets, student_lineages
from skillmix.scores.cells import Cell, largest_cells
from skillmix.scores.compare import ComparableStudent, comparable_students, student_specs
from skillmix.scores.grader_card.graded_runs import GradedRun, graded_run_of
from skillmix.scores.graders import Readability
from skillmix.scores.outcomes.outcome_changes import OutcomeChange, outcome_changes
from skillmix.scores.outcomes.outcome_scores import OutcomeCell, outcome_cells
from skillmix.scores.scoring import partition_notes, score_of, skipped_cells
from skillmix.scores.table_rows import MarkedCell, groups_of, marked_groups, unnamed_notes
from skillmix.training.log import TrainingCurve, run_curves

MOST_TEXTS: Final = 200_000
"""The texts of a run that the pages show unless an option says otherwise."""


@dataclass(frozen=True)
class RunReading:
    """Everything that a report takes from one run."""

    facts: RunFacts
    cells: tuple[Cell, ...]
    by_rules: Mapping[str, tuple[Cell, ...]]
    decided: list[tuple[Ballot, Points]]
    graders_with_code: frozenset[str]
    """Graders whose skills with a checker code decided in this reading."""
    readability: list[Readability]
    graded: Callable[[], GradedRun]
    """Puts the texts under their graders, for grader cards; a report without a second grader does not need it."""
    shown: list[Shown]
    followed: list[FollowedExamples]
    templates: list[CellTemplates]
    baselines: list[TemplateBaseline]
    students: tuple[str, ...]
    """Students that wrote a text."""
    archived: ArchivedRun
    combinations: Mapping[str, Combination]
    lineages: Mapping[str, Lineage]
    contenders: list[ComparableStudent]
    notes: list[str]
    """What the experiment at hand does not name, and what students saw under another partition."""
    reserved: float | None
    """The share of skill sets kept out of training; None for a run that makes no data."""
    datasets: list[DatasetFacts]
    curves: list[TrainingCurve]
    step_seconds: dict[str, StepSeconds]
    catalog: Catalog | None
    outcomes: tuple[OutcomeCell, ...] = ()
    """The cells of a run whose graders name outcomes; `cells` and `decided` are then empty."""
    outcome_changes: tuple[OutcomeChange, ...] = ()

    @property
    def all_cells(self) -> tuple[Cell, ...]:
        """The cells with scores and those with outcomes."""
        return (*self.cells, *(part.cell for part in self.outcomes))


@dataclass
class _ArchivedCalls:
    """What is left of a run's calls once they are in the archive."""

    records: RunRecords
    decided: Mapping[str, list[tuple[Ballot, Points]]]
    """All ballots with their points, by the name of the rules."""
    counter: CallCounter
    numbers: RunArchive
    combinations: Mapping[str, Combination]
    evidence: Mapping[ConversationKey, CodeEvidence]
    graders_with_code: frozenset[str]
    totals: tuple[CallTotals, ...]


def read_run(run: Run, *, rules: str | None, archive: Archive, most_texts: int = MOST_TEXTS) -> RunReading:
    """Read a run's journal once; `rules` is a name, `both`, or None for the run's own.

    Of a run with more than `most_texts` texts, the scores count all texts. Everything that needs the words of texts or
    the votes themselves counts a sample.
    """
    experiment = run.experiment
    evaluated = [cell.student for step in experiment.steps for cell in step.undrawn_cells(experiment.steps)]
    archive.introduce(run.name, evaluated, experiment.graders)
    own = run.rules().name
    names = ["default", "paper"] if rules == "both" else [rules or own]
    main = own if own in names else names[0]
    marked = {name: _marked_run(run, name) for name in names} if _is_sampled(run, most_texts) else {}
    sample = sampled_combinations(marked[main].groups, marked[main].table, most_texts) if marked else None
    with without_cycle_search():
        archived = _archived_calls(run, archive, [main] if marked else names, sample)
    records = archived.records
    points = archived.decided[main]
    by_rules = {name: marked[name].cells if marked else _cells(run, records, archived.decided[name]) for name in names}
    cells = by_rules[main]
    groups = marked[main].groups if marked else groups_of(run, records)
    students = marked[main].table.students if marked else list(dict.fromkeys(t.student for t in records.texts))
    datasets = run_datasets(run)
    lineages = student_lineages(run, run.known_experiment, students, {facts.hash: facts for facts in datasets})
    contenders = [name for name in dict.fromkeys(c.key.student for c in cells) if has_settings(run, name)]
    not_sent = tuple(sorted(archived.counter.not_sent))
    following = texts_following_examples(run, points)
    facts = replace(_facts(run, records, cells), rules=main, not_sent=not_sent, calls=archived.totals)
    if marked:
        table = marked[main].table
        facts = replace(facts, texts=table.texts, shown_texts=len(records.texts))
    catalog = run.unchanged_catalog
    outcomes: list[OutcomeCell] = []
    if run.has_outcomes:
        # Without its catalogue it is not known which topics of a run are controls; "What is missing" names it.
        outcomes = list(outcome_cells({c.key: c for c in cells}, catalog.controls)) if catalog else []
        by_rules, cells, contenders = {}, (), []
    return RunReading(
        facts=facts,
        cells=cells,
        by_rules=by_rules,
        decided=[] if run.has_outcomes else points,
        graders_with_code=archived.graders_with_code,
        readability=archived.counter.readability(run.name),
        graded=partial(graded_run_of, run, [] if run.has_outcomes else points, run.rules(main)),
        shown=_shown(run.name, records, archived.evidence),
        followed=list(followed_examples(run, cells, points, following)),
        templates=list(cell_templates(cells, points, archived.evidence, all_generations=run.is_imported)),
        # The template student writes prose, so a run with an output format has no such baseline.
        baselines=[] if experiment.format else list(template_baselines(run.name, catalog, cells)),
        students=tuple(students),
        archived=ArchivedRun(
            archived.numbers,
            records.texts,
            points,
            archived.evidence,
            run.rules(main),
            following or frozenset(),
            sample,
        ),
        combinations=archived.combinations,
        lineages=lineages,
        contenders=comparable_students(run, run.known_experiment, contenders, lineages),
        notes=[*unnamed_notes(groups), *partition_notes(run, lineages, cells)],
        reserved=(experiment.reserved or None) if run.makes_data else None,
        datasets=datasets,
        curves=run_curves(run),
        step_seconds=shown_seconds(run),
        catalog=catalog,
        outcomes=tuple(outcomes),
        outcome_changes=tuple(outcome_changes(run, outcomes, lineages)) if outcomes else (),
    )


class _MarkedRun(NamedTuple):
    """The scores of a large run."""

    table: MarkTable
    groups: list[MarkedCell]
    cells: tuple[Cell, ...]


def _is_sampled(run: Run, most_texts: int) -> bool:
    """Whether a report shows a sample of the texts of a run."""
    if not is_large(run):
        return False
    with run.read() as journal:
        return journal.conversations() > most_texts


def _marked_run(run: Run, rules_name: str) -> _MarkedRun:
    rules = run.rules(rules_name)
    table = run_marks(run, rules, with_code=run.unchanged_catalog is not None)
    groups = list(marked_groups(run, table))
    cells = largest_cells(group.cell(run.name) for group in groups)
    return _MarkedRun(table, groups, tuple(_without_skipped(list(cells.values()), run)))


def sampled_combinations(groups: Iterable[MarkedCell], table: MarkTable, most_texts: int) -> frozenset[str]:
    """The ids of combinations that have `most_texts` texts at most: of each setting and k those with the lowest ids.

    An id is a hash, so that the lowest ids are a random sample, and part of any larger one. Settings and k with few
    combinations are shown whole, and the others have the same number of combinations. If there is room after that,
    texts that no table counts follow.
    """
    texts: Counter[tuple[str, int]] = Counter()
    drawn: dict[tuple[str, int], set[str]] = defaultdict(set)
    students: set[tuple[str, str, int]] = set()
    for group in groups:
        key = group.setting, group.k
        drawn[key].update(combination.id for combination in group.combinations)
        if (group.student, *key) not in students:  # a text under two graders is one text
            students.add((group.student, *key))
            texts[key] += group.numbers.shape[1]
    ordered = {key: sorted(ids) for key, ids in drawn.items()}

    def total(count: int) -> int:
        return sum(texts[key] * min(count, len(ids)) for key, ids in ordered.items())

    largest = max(map(len, ordered.values()), default=0)
    count = bisect_right(range(largest + 1), most_texts, key=total) - 1
    chosen = {one for ids in ordered.values() for one in ids[: max(1, count)]}
    if count == largest:
        chosen.update(table.lowest_ids(most_texts - total(count)))
    return frozenset(chosen)


def _archived_calls(run: Run, archive: Archive, rules: Sequence[str], sample: Collection[str] | None) -> _ArchivedCalls:
    """Read every call of a run or of a sample, and put it into the archive at once; replies are never all in memory."""
    counter, numbers = CallCounter(), RunArchive(run.name, run.phrases)
    # Code would grade by another vocabulary if the catalogue had changed since.
    code = run.code if run.graders_with_code and run.unchanged_catalog else None
    builder = RecordsBuilder(run, code)
    evidence: dict[ConversationKey, CodeEvidence] = {}
    known: list[dict[int, Points]] = [{} for _ in rules]
    with run.read() as journal:
        combinations = journal.combinations() if sample is None else combinations_of(journal, sample)
        if sample is not None:
            journal.limit_calls(sample)
        totals = tuple(call_totals(journal))
        chosen = tuple(run.rules(name) for name in rules)
        for piece in run_pieces(run, journal, code, rules=chosen, sample=sample):
            archive.add_talks(piece.talks, numbers)
            archive.hold_votes(piece.votes)
            builder.join(piece.records)
            for points, own in zip(known, piece.points, strict=True):
                points.update(zip(map(id, piece.records.all_ballots), own, strict=True))
            numbers.denials.update(piece.denials)
            evidence.update(piece.evidence)
            counter.add(piece.counter)
    archive.add_held_votes(numbers)
    records = builder.records()
    if code is run.code and sample is None:
        records = run.remember("records", lambda: records)
    with_code = frozenset(grader.name for grader in run.graders_with_code) if code else frozenset[str]()
    decided = {name: _decided(run, name, records, own) for name, own in zip(rules, known, strict=True)}
    return _ArchivedCalls(records, decided, counter, numbers, combinations, evidence, with_code, totals)


def _decided(
    run: Run, rules_name: str, records: RunRecords, known: Mapping[int, Points]
) -> list[tuple[Ballot, Points]]:
    """All ballots with their points; `known` has those of most ballots, by the ballot's identity in this process."""
    rules = run.rules(rules_name)
    return [(ballot, known.get(id(ballot)) or ballot.points(rules, run.phrases)) for ballot in records.ballots]


def _cells(run: Run, records: RunRecords, decided: Iterable[tuple[Ballot, Points]]) -> tuple[Cell, ...]:
    points = {id(ballot): p for ballot, p in decided}
    cells = largest_cells(
        group.cell(run.name, [[points[id(b)] if b else None for b in texts] for texts in group.texts])
        for group in groups_of(run, records)
    )
    return tuple(_without_skipped(list(cells.values()), run))


def _without_skipped(cells: list[Cell], run: Run) -> list[Cell]:
    """Drop the cells that `stop_below` skipped, unless some of their texts are scored."""
    if not any(step.may_stop_early for step in run.experiment.steps):
        return cells
    skipped = {cell[1:] for cell in skipped_cells(run.experiment, [score_of(cell, FULL_MARKS, run) for cell in cells])}
    return [
        c for c in cells if (c.key.student, c.key.setting, c.key.k) not in skipped or c.scores["full_marks"].complete
    ]


def _facts(run: Run, records: RunRecords, cells: tuple[Cell, ...]) -> RunFacts:
    experiment = run.experiment
    graders = {name: s.model for name, s in experiment.graders.items()}
    return RunFacts(
        name=run.name,
        catalog=run.fact("catalog"),
        partition=run.fact("partition"),
        seed=run.seed,
        prompts=run.fact("prompts"),
        rules="default",
        exclude=tuple(experiment.exclude),
        students=student_specs(experiment),
        graders=graders or dict.fromkeys(sorted({b.grader for b in records.graders_ballots}), "imported"),
        rounds={name: s.votes for name, s in experiment.graders.items()},
        generations=max(
            (cell.generations for s in experiment.steps for cell in s.undrawn_cells(experiment.steps)), default=0
        ),
        texts=len(records.texts),
        missing=sum(points is None for cell in cells for texts in cell.points for points in texts),
        excluded_by_setting={
            cell.label: cell.exclude
            for step in experiment.steps
            for cell in step.undrawn_cells(experiment.steps)
            if cell.exclude
        },
        invocations=read_invocations(run.path),
        decoding={} if run.is_imported else decoding_in_words(experiment),
        train_seeds=_train_seeds(experiment),
        families={name: variant.family for name, variant in experiment.variants.items()},
        hashes=_hashes(run),
    )


def _train_seeds(experiment: Experiment) -> dict[str, int]:
    """The seed of each train step; a step without one takes the seed of the experiment."""
    seeds = {step.name: getattr(step, "seed", None) for step in experiment.steps if step.trains_model}
    return {name: experiment.seed if seed is None else int(seed) for name, seed in seeds.items()}


def _hashes(run: Run) -> dict[str, str]:
    """The hashes that the run stored when it was made."""
    stored = {"catalog": run.document.get("catalog_hash"), "prompts": run.document.get("prompts_hash")}
    return {name: str(address) for name, address in stored.items() if address}


def _shown(run: str, records: RunRecords, evidence: Mapping[ConversationKey, CodeEvidence]) -> list[Shown]:
    groups: dict[tuple[str, int], list[CodeEvidence]] = defaultdict(list)
    for text in records.texts:
        if text.conversation in evidence and text.answer.text:
            groups[text.student, text.combination.k].append(evidence[text.conversation])
    return [
        Shown(
            run=run,
            student=student,
            k=k,
            texts=len(group),
            requested=sum(words is not None for f in group for words in f.words),
            unrequested=sum(len(f.unrequested) for f in group),
            by_skill=dict(sorted(Counter(s for f in group for s in f.unrequested).items())),
        )
        for (student, k), group in sorted(groups.items())
    ]
