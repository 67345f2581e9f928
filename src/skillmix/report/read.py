"""Read runs for a report, describe their models and settings, and judge the runs; each journal is read once."""

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from statistics import fmean
from typing import Any, Final
from urllib.parse import urlencode

from skillmix.calls import is_human
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.datasets.copies import FOLLOWS, example_shares
from skillmix.datasets.corpus import corpus_of, distinct_share
from skillmix.datasets.dataset_plan import prompt_examples
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, GraderSettings, StudentSettings
from skillmix.files import SHIPPED
from skillmix.grading.points import FULL_MARKS, Ballot, Points, StudentText, text_score
from skillmix.models.lineage import trained_skill_sets
from skillmix.report.archive import Archive, CodeEvidence, RunArchive
from skillmix.report.records import (
    CORPUS_TOKENS,
    MOST_TEXTS,
    CellTexts,
    ExampleText,
    Report,
    ReportOptions,
    RunFacts,
    Shown,
    SkillDefinition,
    TemplateBaseline,
    by_key,
)
from skillmix.report.tables.scores import compared_pairs
from skillmix.runs.progress import say
from skillmix.runs.run import Run
from skillmix.runs.students import has_settings
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
from skillmix.scores.cells import Cell, largest_cells
from skillmix.scores.comparisons import before_and_after
from skillmix.scores.findings import findings, judged_contrasts
from skillmix.scores.grader_cards import cards_of, graded_run_of
from skillmix.scores.graders import GraderCard, grader_agreement, round_agreement
from skillmix.scores.lineages import run_datasets, student_lineages
from skillmix.scores.safety import OutcomeCell, outcome_cells, outcome_changes
from skillmix.scores.scoring import (
    TableRow,
    comparable_students,
    partition_notes,
    score_of,
    skipped_cells,
    student_specs,
    table_rows,
    unnamed_notes,
)
from skillmix.scores.sentences import example_of
from skillmix.scores.status import CallTotals, call_totals
from skillmix.training.log import run_curves


def decoding_in_words(experiment: Experiment) -> dict[str, str]:
    """Describe the sampling settings of every student and grader that is a model."""
    models: dict[str, StudentSettings | GraderSettings] = {**experiment.students}
    models |= {name: grader for name, grader in experiment.graders.items() if grader.asked}
    words = {}
    for name, own in models.items():
        words[name] = f"temperature {own.temperature:g}, at most {own.max_tokens:,} tokens"
        words[name] += "" if own.top_p is None else f", top-p {own.top_p:g}"
    return words


MOST_BASELINE: Final = 200
"""The maximum number of combinations, for each setting and k, for which the template student generates texts."""
RUN: Final = 4
_AT_ONCE: Final = 100
"""The number of texts whose grading prompts are read together."""


def cell_texts(
    cells: Iterable[Cell],
    decided: Sequence[tuple[Ballot, Points]],
    evidence: Mapping[ConversationKey, CodeEvidence],
    following: Container[ConversationKey] | None,
    *,
    all_generations: bool,
) -> Iterator[CellTexts]:
    """Count the texts of every cell; with `all_generations`, also count texts beyond the planned samples."""
    by_combination: dict[tuple[str, str, str], list[tuple[StudentText, bool]]] = defaultdict(list)
    for ballot, points in decided:
        text, is_full = ballot.text, text_score(points, FULL_MARKS) == 1.0
        by_combination[text.student, text.combination.id, ballot.grader].append((text, is_full))
    for cell in cells:
        texts = [
            (text, is_full)
            for combination, planned in zip(cell.combinations, cell.points, strict=True)
            for text, is_full in by_combination.get((cell.key.student, combination.id, cell.key.grader), ())
            # The journal may contain more samples than the experiment now requests.
            if all_generations or text.generation < len(planned)
        ]
        full = [text for text, is_full in texts if is_full]
        yield CellTexts(
            key=cell.key,
            texts=len(texts),
            full_marks=len(full),
            repeated=_repeated(full, evidence),
            distinct_4=distinct_share(corpus_of(text.answer.text for text in full), RUN),
            following=None if following is None else sum(text.conversation in following for text, _ in texts),
            full_marks_following=None if following is None else sum(text.conversation in following for text in full),
        )


def _repeated(texts: Sequence[StudentText], evidence: Mapping[ConversationKey, CodeEvidence]) -> int | None:
    """Count texts that show every skill in words that, apart from the topic, also occur for another combination."""
    users: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    shown = []
    for text in texts:
        found = evidence.get(text.conversation)
        if found is None or None in found.masked:
            return None
        shown.append(list(zip(text.combination.skills, found.masked, strict=True)))
        for one in shown[-1]:
            users[one].add(text.combination.id)
    return sum(all(len(users[one]) > 1 for one in of_text) for of_text in shown) if texts else None


def template_baselines(run: str, catalog: Catalog | None, cells: Iterable[Cell]) -> Iterator[TemplateBaseline]:
    """Compute the template student's scores by setting and k, over combinations for whose skills it has clauses.

    Yield nothing if the catalog has no clauses or contains untrusted code of its own.
    """
    if catalog is None or not catalog.templates or (catalog.code is not None and not catalog.code.is_trusted):
        return
    from skillmix.checkers.template_student import FORMS, Form, TemplateStudent

    combinations: dict[tuple[str, int], dict[str, Combination]] = defaultdict(dict)
    for cell in cells:
        combinations[cell.key.setting, cell.key.k].update((c.id, c) for c in cell.combinations)
    student = TemplateStudent(catalog.templates, judge_of(catalog))
    for (setting, k), drawn in combinations.items():
        full: dict[Form, list[bool]] = {form: [] for form in FORMS}
        woven: dict[Form, list[bool]] = {form: [] for form in FORMS}
        for combination, form in product(list(drawn.values())[:MOST_BASELINE], FORMS):
            written = student.write(combination.skills, combination.topic, form)
            if written is not None:
                full[form].append(written.has_full_marks)
                is_woven = written.has_full_marks and written.verdict.is_woven(combination.skills) is True
                woven[form].append(is_woven)
        if all(full.values()):
            shares = ({form: fmean(values) for form, values in own.items()} for own in (full, woven))
            yield TemplateBaseline(run, setting, k, len(full["fixed"]), *shares)


def texts_following_examples(run: Run, decided: Sequence[tuple[Ballot, Points]]) -> frozenset[ConversationKey] | None:
    """Find texts that are near-copies of examples; None if the catalog of the run is unknown."""
    if run.unchanged_catalog is None:
        return None
    prompts = {settings.prompts or run.experiment.prompts for settings in run.experiment.students.values()}
    try:
        examples = prompt_examples(run.unchanged_catalog, prompts)
    except UserError:  # a prompt set no longer exists
        examples = prompt_examples(run.unchanged_catalog, ())
    if not examples:
        return None
    texts = list({id(ballot.text): ballot.text for ballot, _ in decided}.values())
    shares = example_shares(corpus_of(text.answer.text for text in texts), examples)
    return frozenset(text.conversation for text, share in zip(texts, shares.tolist(), strict=True) if share >= FOLLOWS)


def read_report(runs: Sequence[Run], archive: Archive, options: ReportOptions) -> Report:
    """Read the journal of each run once, and judge the runs together."""
    parts = []
    for run in runs:
        say(f"report: reading {run.path}")
        parts.append(read_run(run, rules=options.rules, archive=archive, most_texts=options.texts))
    whole = _joined(parts)
    cells = by_key(whole.cells)
    combinations = {c: combination for own in archive.runs for c, combination in own.combinations.items()}
    sets = {key: trained_skill_sets(lineage, combinations) for key, lineage in whole.lineages.items()}
    decided = [() if run.has_outcomes else own.decided for run, own in zip(runs, archive.runs, strict=True)]
    cards: list[GraderCard] = []
    if any(len({ballot.grader for ballot, _ in own}) > 1 for own in decided):
        # Only graders that can be compared with another grader have cards.
        every = zip(runs, decided, archive.runs, strict=True)
        cards = cards_of([graded_run_of(run, own, archived.rules) for run, own, archived in every])
    published = SHIPPED / "published.json"
    report = replace(
        whole,
        by_rules=whole.by_rules if options.rules == "both" else {},
        skill_sets={key: known for key, known in sets.items() if known is not None},
        contrasts=tuple(judged_contrasts(runs, whole.contenders, cells)),
        findings=tuple(findings(whole.contenders, cells)),
        changes=tuple(before_and_after(whole.contenders, cells)),
        cards=tuple(card for card in cards if card.labelled),
        definitions=definitions_of(
            [(run.name, run.unchanged_catalog, run.fact("partition")) for run in runs if run.unchanged_catalog],
            (skill for c in whole.all_cells for combination in c.combinations for skill in combination.skills),
        ),
        corpus_tokens=options.tokens or CORPUS_TOKENS,
        frequencies=options.frequencies,
        published=json.loads(published.read_text(encoding="utf-8"))["tables"] if options.published else {},
    )
    gaps = list(report.gaps)
    if not report.lineages:
        gaps.append("No student has a lineage (`skillmix.json`), so their training data are unknown.")
    elif not report.skill_sets and not report.reserved:
        gaps.append("Seen and kept-back skill sets: no lineage says which skills were trained on together.")
    if not report.agreements and not report.has_only_outcomes:
        gaps.append("Agreement between graders: no two graders graded the same text.")
    if not report.rounds and not report.has_only_outcomes:
        gaps.append("Agreement between rounds: no grader voted twice on a text.")
    compared = tuple(compared_pairs(report))
    return replace(report, gaps=tuple(gaps), comparisons=compared, examples=tuple(_examples_of(report, archive)))


def definitions_of(
    catalogs: Iterable[tuple[str, Catalog, str | None]], skills: Iterable[str]
) -> dict[str, SkillDefinition]:
    """Return each skill's definition from the first run that has it; runs are given as name, catalog and partition."""
    listed = list(catalogs)
    found: dict[str, SkillDefinition] = {}
    for name in sorted(set(skills)):
        known = [(run, catalog, side) for run, catalog, side in listed if any(s.name == name for s in catalog.skills)]
        if known:
            skill = known[0][1].skill(name)
            sides = {run: _side(catalog, partition, name) for run, catalog, partition in known}
            # list each run with its side if the side of a skill differs between runs
            each = ", ".join(f"{side} in {run}" for run, side in sides.items())
            side = each if len(set(sides.values())) > 1 else next(iter(sides.values()))
            found[name] = SkillDefinition(name, skill.category, skill.definition, skill.example, side)
    return found


def _side(catalog: Catalog, partition: str | None, skill: str) -> str:
    try:
        sides = catalog.partition(partition)
    except UserError:
        return "unknown side"
    groups = (name for name in sides.settings[:-1] if skill in sides.side(name).skills)
    return next(groups, "neither train nor held-out")


def _joined(parts: Sequence[Report]) -> Report:
    """Join the reports of single runs into one report, in order."""
    joined: dict[str, Any] = {}
    for name, first in vars(parts[0]).items():
        values = [getattr(part, name) for part in parts]
        if isinstance(first, tuple):
            joined[name] = tuple(chain.from_iterable(values))
        elif isinstance(first, frozenset):
            joined[name] = frozenset(chain.from_iterable(values))
        elif isinstance(first, Mapping):
            joined[name] = {key: value for of in values for key, value in of.items()}
    rules = dict.fromkeys(name for part in parts for name in part.by_rules)
    joined["by_rules"] = {name: tuple(c for part in parts for c in part.by_rules.get(name, ())) for name in rules}
    return replace(parts[0], **joined)


def _examples_of(report: Report, archive: Archive) -> Iterator[ExampleText]:
    """Yield one text from each student of the main result, all on the same combination."""
    archived_ids = set[str]().union(*(own.combinations for own in archive.runs))
    found = example_of(report.result, by_key(report.cells), among=archived_ids)
    if found is None:
        return
    for key, missed in found.missed.items():
        archived = next(one for one in archive.runs if one.run == key.run)
        place = key.student, found.combination.id
        texts = [text.answer.text for text in archived.texts if (text.student, text.combination.id) == place]
        link = f"texts.html#{urlencode({'text': '/'.join([key.run, *place, '0'])})}"
        yield from (ExampleText(report.label(*key[:2]), found.about, text, missed, link) for text in texts[:1])


def read_run(run: Run, *, rules: str | None, archive: Archive, most_texts: int = MOST_TEXTS) -> Report:
    """Make the part of a report about one run, in one pass over its journal.

    `rules` is a name, `both`, or None for the run's own rules. If a run has more than `most_texts` texts, the scores
    still count all texts, but everything that needs the words of texts or the votes uses a sample.
    """
    experiment, catalog, name = run.experiment, run.unchanged_catalog, run.name
    evaluated = [cell.student for step in experiment.steps for cell in step.undrawn_cells(experiment.steps)]
    archive.introduce(name, evaluated, experiment.graders)
    own = run.rules().name
    names = ["default", "paper"] if rules == "both" else [rules or own]
    main = own if own in names else names[0]
    # If the catalog has changed since, code could decide differently than when the texts were graded.
    with_code = not run.graders_with_code or catalog is not None
    with run.read() as journal:
        is_sampled = journal.conversations() > most_texts
    tables: dict[str, TextTable] = {}
    sample = None
    if is_sampled:
        tables = {of: text_table(run, run.rules(of), with_code=with_code) for of in names}
        sample = sampled_combinations(table_rows(run, tables[main]), tables[main], most_texts)
    archived = archive.begin(run, run.rules(main), sample)
    first = [main] if is_sampled else [main, *(of for of in names if of != main)]
    records, totals, made = _read_calls(run, archived, first, with_code=with_code)
    tables = tables or made
    decided, table = archived.decided, tables[main]
    rows = list(table_rows(run, table))
    by_rules = {}
    for of in names:
        found = largest_cells(row.cell(name) for row in table_rows(run, tables[of]))
        by_rules[of] = tuple(_without_skipped(list(found.values()), run))
    cells = by_rules[main]
    datasets = run_datasets(run)
    lineages = student_lineages(run, run.known_experiment, table.students, {facts.hash: facts for facts in datasets})
    following = texts_following_examples(run, decided)
    archived.following = following or frozenset()
    facts = _facts(run, records, cells)
    facts = replace(facts, rules=main, not_sent=tuple(sorted(archived.not_sent)), calls=totals)
    if sample is not None:
        facts = replace(facts, texts=table.texts, shown_texts=len(records.texts))
    outcomes: list[OutcomeCell] = []
    scored = decided
    if run.has_outcomes:
        # Without the catalog, the controls among the topics are unknown, so "What is missing" mentions the run.
        outcomes = list(outcome_cells({c.key: c for c in cells}, catalog.controls)) if catalog else []
        by_rules, cells, scored = {}, (), []
    with_graders = frozenset(grader.name for grader in run.graders_with_code) if with_code else frozenset[str]()
    contenders = [student for student in dict.fromkeys(c.key.student for c in cells) if has_settings(run, student)]
    agreements, worst = grader_agreement(name, scored)
    part = Report(
        runs=(facts,),
        cells=cells,
        by_rules=by_rules,
        lineages={(name, student): lineage for student, lineage in lineages.items()},
        reserved={name: experiment.reserved} if run.makes_data and experiment.reserved else {},
        contenders=tuple(comparable_students(run, run.known_experiment, contenders, lineages)),
        rounds=tuple(round_agreement(name, [ballot for ballot, _ in scored], with_graders)),
        agreements=tuple(agreements),
        disagreements={name: tuple(worst)} if worst else {},
        readability=tuple(archived.readability()),
        datasets=tuple((name, of) for of in datasets),
        curves=tuple((name, curve) for curve in run_curves(run)),
        step_seconds=tuple((name, step, s) for step, s in run.step_seconds.items()),
        shown=tuple(_shown(name, records, archived.evidence)),
        cell_texts=tuple(cell_texts(cells, decided, archived.evidence, following, all_generations=run.is_imported)),
        # The template student generates prose, so a run with an output format has no template baseline.
        baselines=() if experiment.format else tuple(template_baselines(name, catalog, cells)),
        categories={skill.name: skill.category for skill in catalog.skills} if catalog else {},
        common_skills=frozenset(catalog.exclude.get("common", ()) if catalog else ()),
        outcomes=tuple(outcomes),
        outcome_changes=tuple(outcome_changes(run, outcomes, lineages)) if outcomes else (),
    )
    # Add notes on data outside the current experiment, and on skills that students saw under another partition.
    notes = [*unnamed_notes(rows), *partition_notes(run, lineages, cells)]
    return replace(part, gaps=tuple(_gaps_of_run(part, facts, table.students, notes, has_catalog=catalog is not None)))


def _gaps_of_run(
    part: Report, facts: RunFacts, students: Iterable[str], notes: Iterable[str], *, has_catalog: bool
) -> Iterator[str]:
    if facts.missing:
        yield f"{facts.name}: {facts.missing:,} planned texts are not written or not graded."
    if facts.shown_texts is not None:
        yield (
            f"{facts.name}: the pages show {facts.shown_texts:,} of its {facts.texts:,} texts. Scores count all "
            "texts; numbers based on votes or words count only the texts shown: unparseable replies, agreement, "
            "grader cards, examples, templates, and unrequested skills."
        )
    without_cell = ", ".join(sorted(set(students) - {cell.key.student for cell in part.all_cells}))
    if without_cell:
        yield f"{facts.name}: the texts of {without_cell} are in no cell, because they were not planned or not graded."
    for (_, student), lineage in part.lineages.items():
        drawn = {c.id for cell in part.all_cells if cell.key.student == student for c in cell.combinations}
        trained_on = len(drawn & lineage.combinations)
        if trained_on:
            of = f"{trained_on} of the {len(drawn)} combinations"
            yield f"{facts.name}: {student} was trained on {of} it is scored on."
    yield from (f"{facts.name}: {note}." for note in notes)
    if facts.catalog and not has_catalog:
        yield f"{facts.name}: its catalog {facts.catalog} is missing or has changed."


def sampled_combinations(rows: Iterable[TableRow], table: TextTable, most_texts: int) -> frozenset[str]:
    """Return the lowest combination ids for each setting and k, so that there are at most `most_texts` texts in total.

    An id is a hash, so the lowest ids are a random sample and also part of any larger sample. Small cells are shown in
    full, and all other cells receive equal numbers of combinations. If there is room left, texts that no table counts
    are added.
    """
    texts: Counter[tuple[str, int]] = Counter()
    drawn: dict[tuple[str, int], set[str]] = defaultdict(set)
    students: set[tuple[str, str, int]] = set()
    for row in rows:
        key = row.setting, row.k
        drawn[key].update(combination.id for combination in row.combinations)
        if (row.student, *key) not in students:  # a text with two graders is still one text
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


def _read_calls(
    run: Run, archived: RunArchive, rules: Sequence[str], *, with_code: bool
) -> tuple[RunRecords, tuple[CallTotals, ...], dict[str, TextTable]]:
    """Read every call of a run or of a sample, and archive it immediately, so that replies are never all in memory.

    The first of the rules determines the displayed points. The returned tables are keyed by the name of the rules.
    """
    chosen = [run.rules(name) for name in rules]
    builders = [TableBuilder(run) for _ in rules]
    shown: dict[int, Points] = {}
    sample = archived.sample
    with run.read() as journal:
        archived.combinations = journal.combinations() if sample is None else journal.combinations_of(sample)
        totals = tuple(call_totals(journal))
        if sample is not None:
            journal.limit_calls(sample)
        written = []
        for conversation in written_conversations(run, journal):
            archived.add_talk(conversation.key, conversation.turns, journal)
            written.append(conversation._replace(turns=()))

        def found() -> Iterator[TextWithBallots]:
            source = texts_with_ballots(run, journal, with_code=with_code, with_words=True, written=written)
            while block := list(islice(source, _AT_ONCE)):
                calls = (call for one in block for call in one.conversation.calls)
                messages = journal.messages_with(address for call in calls for address in call.messages)
                for one in block:
                    archived.add_gradings(one.conversation, messages)
                    for number, (builder, own) in enumerate(zip(builders, chosen, strict=True)):
                        decided = [(ballot, ballot.points(own, run.phrases)) for ballot in one.ballots]
                        builder.add(one.text, decided)
                        if not number:
                            shown.update((id(ballot), points) for ballot, points in decided)
                    yield one

        records = records_of(run, found())
    tables = {name: builder.table() for name, builder in zip(rules, builders, strict=True)}
    if sample is None:
        for own in chosen:
            run.remember(table_name(own, with_code=with_code), partial(tables.__getitem__, own.name))
    archived.texts = records.texts
    archived.decided = [(ballot, shown[id(ballot)]) for ballot in records.ballots]
    return records, totals, tables


def _without_skipped(cells: list[Cell], run: Run) -> list[Cell]:
    """Remove the cells that `stop_below` skipped, unless some of their texts are scored."""
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
