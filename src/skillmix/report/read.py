"""One run, read once for a report: cells, checks of its graders, lineage; its calls go to the archive on the way."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from skillmix.calls import is_human
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.checkers.template_student import FORMS, Form, TemplateStudent
from skillmix.datasets.copies import FOLLOWS, example_shares
from skillmix.datasets.corpus import corpus_of, distinct_share
from skillmix.datasets.dataset_plan import prompt_examples
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.grading.points import FULL_MARKS, Ballot, Points, StudentText, text_score
from skillmix.models.lineage import DatasetFacts, Lineage
from skillmix.report.archive import (
    Archive,
    ArchivedRun,
    CallCounter,
    CodeEvidence,
    DenialWords,
    RunArchive,
    evidence_of,
)
from skillmix.report.records import CellTemplates, FollowedExamples, RunFacts, Shown, TemplateBaseline
from skillmix.runs.past_calls import CallTotals, call_totals
from skillmix.runs.run import Run
from skillmix.runs.students import has_settings, run_datasets, student_lineages
from skillmix.runs.texts import (
    ConversationKey,
    RunRecords,
    TableBuilder,
    TextTable,
    TextWithBallots,
    records_of,
    table_name,
    text_table,
    texts_with_ballots,
    written_conversations,
)
from skillmix.runs.verdicts import judge_of
from skillmix.scores.cards import GradedRun, graded_run_of
from skillmix.scores.cells import Cell, largest_cells
from skillmix.scores.graders import Readability
from skillmix.scores.outcomes import OutcomeCell, OutcomeChange, outcome_cells, outcome_changes
from skillmix.scores.scoring import (
    ComparableStudent,
    TableRow,
    comparable_students,
    partition_notes,
    score_of,
    skipped_cells,
    student_specs,
    table_rows,
    unnamed_notes,
)
from skillmix.training.log import TrainingCurve, run_curves


def decoding_in_words(experiment: Experiment) -> dict[str, str]:
    """The sampling settings of every student and grader that is a model."""
    asked = {name: grader for name, grader in experiment.graders.items() if grader.asked}
    return {
        **{name: _sampling(s.temperature, s.max_tokens, s.top_p) for name, s in experiment.students.items()},
        **{name: _sampling(g.temperature, g.max_tokens, g.top_p) for name, g in asked.items()},
    }


def _sampling(temperature: float, max_tokens: int, top_p: float | None) -> str:
    words = f"temperature {temperature:g}, at most {max_tokens:,} tokens"
    return words if top_p is None else f"{words}, top-p {top_p:g}"


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


def texts_following_examples(run: Run, decided: Sequence[tuple[Ballot, Points]]) -> frozenset[ConversationKey] | None:
    """The texts that follow an example; None if the catalogue of the run is unknown."""
    examples = _examples(run)
    if not examples:
        return None
    texts = list({id(ballot.text): ballot.text for ballot, _ in decided}.values())
    shares = example_shares(corpus_of(text.answer.text for text in texts), examples)
    return frozenset(text.conversation for text, share in zip(texts, shares.tolist(), strict=True) if share >= FOLLOWS)


def followed_examples(
    run: Run,
    cells: Iterable[Cell],
    decided: Sequence[tuple[Ballot, Points]],
    following: Container[ConversationKey] | None,
) -> Iterator[FollowedExamples]:
    """The counts of every cell; none if it is unknown which texts follow an example."""
    if following is None:
        return
    by_combination: dict[tuple[str, str, str], list[tuple[int, bool, bool]]] = defaultdict(list)
    for ballot, points in decided:
        text = ballot.text
        outcome = (text.generation, text.conversation in following, text_score(points, FULL_MARKS) == 1.0)
        by_combination[text.student, text.combination.id, ballot.grader].append(outcome)
    for cell in cells:
        _, student, grader, _, _ = cell.key
        texts = [
            (follows, is_full)
            for combination, planned in zip(cell.combinations, cell.points, strict=True)
            for generation, follows, is_full in by_combination.get((student, combination.id, grader), ())
            # The journal may hold more generations than the experiment now asks for.
            if run.is_imported or generation < len(planned)
        ]
        yield FollowedExamples(
            key=cell.key,
            texts=len(texts),
            following=sum(follows for follows, _ in texts),
            full_marks=sum(is_full for _, is_full in texts),
            full_marks_following=sum(follows and is_full for follows, is_full in texts),
        )


def _examples(run: Run) -> list[str]:
    """The examples of the catalogue and, where the prompt sets are still there, their worked examples."""
    catalog = run.unchanged_catalog
    if catalog is None:
        return []
    prompts = {settings.prompts or run.experiment.prompts for settings in run.experiment.students.values()}
    try:
        return prompt_examples(catalog, prompts)
    except UserError:
        return prompt_examples(catalog, ())


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
    step_seconds: dict[str, float]
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
    points: list[tuple[Ballot, Points]]
    """All ballots with their points."""
    tables: Mapping[str, TextTable]
    """By the name of the rules."""
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
    # Code would grade by another vocabulary if the catalogue had changed since.
    with_code = not run.graders_with_code or run.unchanged_catalog is not None
    sample = None
    with run.read() as journal:
        is_sampled = journal.conversations() > most_texts
    if is_sampled:
        tables = {name: text_table(run, run.rules(name), with_code=with_code) for name in names}
        sample = sampled_combinations(table_rows(run, tables[main]), tables[main], most_texts)
        archived = _archived_calls(run, archive, [main], sample, with_code=with_code)
    else:
        first = [main, *(name for name in names if name != main)]
        archived = _archived_calls(run, archive, first, None, with_code=with_code)
        tables = dict(archived.tables)
    records, points, table = archived.records, archived.points, tables[main]
    rows = list(table_rows(run, table))
    by_rules = {}
    for name in names:
        found = largest_cells(row.cell(run.name) for row in table_rows(run, tables[name]))
        by_rules[name] = tuple(_without_skipped(list(found.values()), run))
    cells = by_rules[main]
    students = table.students
    datasets = run_datasets(run)
    lineages = student_lineages(run, run.known_experiment, students, {facts.hash: facts for facts in datasets})
    contenders = [name for name in dict.fromkeys(c.key.student for c in cells) if has_settings(run, name)]
    not_sent = tuple(sorted(archived.counter.not_sent))
    following = texts_following_examples(run, points)
    facts = replace(_facts(run, records, cells), rules=main, not_sent=not_sent, calls=archived.totals)
    if sample is not None:
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
        notes=[*unnamed_notes(rows), *partition_notes(run, lineages, cells)],
        reserved=(experiment.reserved or None) if run.makes_data else None,
        datasets=datasets,
        curves=run_curves(run),
        step_seconds=run.step_seconds,
        catalog=catalog,
        outcomes=tuple(outcomes),
        outcome_changes=tuple(outcome_changes(run, outcomes, lineages)) if outcomes else (),
    )


def sampled_combinations(rows: Iterable[TableRow], table: TextTable, most_texts: int) -> frozenset[str]:
    """The ids of combinations that have `most_texts` texts at most: of each setting and k those with the lowest ids.

    An id is a hash, so that the lowest ids are a random sample, and part of any larger one. Settings and k with few
    combinations are shown whole, and the others have the same number of combinations. If there is room after that,
    texts that no table counts follow.
    """
    texts: Counter[tuple[str, int]] = Counter()
    drawn: dict[tuple[str, int], set[str]] = defaultdict(set)
    students: set[tuple[str, str, int]] = set()
    for row in rows:
        key = row.setting, row.k
        drawn[key].update(combination.id for combination in row.combinations)
        if (row.student, *key) not in students:  # a text under two graders is one text
            students.add((row.student, *key))
            texts[key] += row.numbers.shape[1]
    ordered = {key: sorted(ids) for key, ids in drawn.items()}

    def total(count: int) -> int:
        return sum(texts[key] * min(count, len(ids)) for key, ids in ordered.items())

    largest = max(map(len, ordered.values()), default=0)
    count = bisect_right(range(largest + 1), most_texts, key=total) - 1
    chosen = {one for ids in ordered.values() for one in ids[: max(1, count)]}
    if count == largest:
        chosen.update(table.lowest_ids(most_texts - total(count)))
    return frozenset(chosen)


def _archived_calls(
    run: Run, archive: Archive, rules: Sequence[str], sample: Collection[str] | None, *, with_code: bool
) -> _ArchivedCalls:
    """Read every call of a run or of a sample, and put it into the archive at once; replies are never all in memory.

    The first of the rules decides the points that are shown.
    """
    counter, numbers = CallCounter(), RunArchive(run.name, run.phrases)
    words = DenialWords(run.phrases)
    evidence: dict[ConversationKey, CodeEvidence] = {}
    chosen = [run.rules(name) for name in rules]
    builders = [TableBuilder(run) for _ in rules]
    shown: dict[int, Points] = {}
    with run.read() as journal:
        combinations = journal.combinations() if sample is None else journal.combinations_of(sample)
        totals = tuple(call_totals(journal))
        encoder = archive.encoder(run.name, journal)
        if sample is not None:
            journal.limit_calls(sample)
        for written in written_conversations(run, journal):
            numbers.talks[written.key] = archive.add_talk(encoder.talk(written.turns))
            counter.add_calls(written.turns)

        def found() -> Iterator[TextWithBallots]:
            for one in texts_with_ballots(run, journal, with_code=with_code, with_words=True):
                graded = one.conversation
                if graded.calls:
                    numbers.votes[one.text.conversation] = archive.add_votes(encoder.votes(graded))
                    words.add(graded)
                counter.add_gradings(graded)
                if one.judged is not None:
                    evidence[one.text.conversation] = evidence_of(run, one.judged)
                for number, (builder, own) in enumerate(zip(builders, chosen, strict=True)):
                    decided = [(ballot, ballot.points(own, run.phrases)) for ballot in one.ballots]
                    builder.add(one.text, decided)
                    if not number:
                        shown.update((id(ballot), points) for ballot, points in decided)
                yield one

        records = records_of(run, found())
    numbers.denials = words.found
    tables = {name: builder.table() for name, builder in zip(rules, builders, strict=True)}
    if sample is None:
        for own in chosen:
            run.remember(table_name(own, with_code=with_code), partial(tables.__getitem__, own.name))
    with_graders = frozenset(grader.name for grader in run.graders_with_code) if with_code else frozenset[str]()
    points = [(ballot, shown[id(ballot)]) for ballot in records.ballots]
    return _ArchivedCalls(records, points, tables, counter, numbers, combinations, evidence, with_graders, totals)


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
    by_graders = [ballot for ballot in records.ballots if not is_human(ballot.grader)]
    seeds = {step.name: getattr(step, "seed", None) for step in experiment.steps if step.trains_model}
    keys = {"catalog": "catalog_hash", "prompts": "prompts_hash"}
    return RunFacts(
        name=run.name,
        catalog=run.fact("catalog"),
        partition=run.fact("partition"),
        seed=run.seed,
        prompts=run.fact("prompts"),
        rules="default",
        exclude=tuple(experiment.exclude),
        students=student_specs(experiment),
        graders=graders or dict.fromkeys(sorted({b.grader for b in by_graders}), "imported"),
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
        invocations=run.invocations,
        decoding={} if run.is_imported else decoding_in_words(experiment),
        train_seeds={name: experiment.seed if seed is None else int(seed) for name, seed in seeds.items()},
        families={name: variant.family for name, variant in experiment.variants.items()},
        hashes={name: str(run.document[key]) for name, key in keys.items() if run.document.get(key)},
    )


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
