"""One run, read once for a report: cells, checks of its graders, lineage; its calls go to the archive on the way."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from skillmix.calls import Call, Reply
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.experiment.experiment import EvaluateStep, Experiment, GenerateStep
from skillmix.experiment.sections import student_name
from skillmix.grading.ballots import Ballot, ReadCall, ballots, student_texts
from skillmix.grading.points import METRICS, Points
from skillmix.models.lineage import DatasetFacts, Lineage, TrainingCurve
from skillmix.report.archive import Archive, ArchivedRun, CodeEvidence, Conversation, RunArchive
from skillmix.report.records import RunFacts, Shown
from skillmix.runs.reading.gradings import read_gradings
from skillmix.runs.reading.run_records import RunRecords
from skillmix.runs.rules_grader import RulesGrader, applicable_reasons, graders_with_code, reading_of
from skillmix.runs.run import Run
from skillmix.scores.cells import Cell, largest_cells
from skillmix.scores.compare import ComparableStudent
from skillmix.scores.graders import Readability
from skillmix.scores.lineages import run_contenders, run_datasets, run_lineages, student_specs
from skillmix.scores.scoring import groups_of, score_of, skipped_cells
from skillmix.training.log import run_curves


@dataclass(frozen=True)
class RunReading:
    """Everything that a report takes from one run."""

    facts: RunFacts
    cells: tuple[Cell, ...]
    by_rules: Mapping[str, tuple[Cell, ...]]
    decided: list[tuple[Ballot, Points]]
    readability: list[Readability]
    shown: list[Shown]
    archived: ArchivedRun
    combinations: Mapping[str, Combination]
    lineages: Mapping[str, Lineage]
    contenders: list[ComparableStudent]
    reserved: float | None
    """The share of skill sets kept out of training; None for a run that makes no data."""
    datasets: list[DatasetFacts]
    curves: list[TrainingCurve]
    catalog: Catalog | None


@dataclass
class _Tally:
    """What is counted while calls go by."""

    calls: Counter[str] = field(default_factory=Counter)
    without_reply: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    not_sent: set[str] = field(default_factory=set)

    def watch(self, read: Iterator[ReadCall]) -> Iterator[ReadCall]:
        for item in read:
            grader = str(getattr(item.call.key, "grader", ""))
            self.calls[grader] += 1
            if item.reading is None:
                self.without_reply[grader] += 1
            elif item.reading.problem is not None:
                self.reasons[grader][item.reading.problem] += 1
            self._note(item.call)
            yield item

    def watch_calls(self, calls: Iterator[Call]) -> Iterator[Call]:
        for call in calls:
            self._note(call)
            yield call

    def _note(self, call: Call) -> None:
        if isinstance(call.outcome, Reply) and call.outcome.not_sent:
            self.not_sent |= {f"{name} ({call.model})" for name in call.outcome.not_sent}

    def readability(self, run: str) -> list[Readability]:
        return [
            Readability(
                run=run,
                grader=grader,
                calls=self.calls[grader],
                unreadable=self.reasons[grader].total(),
                without_reply=self.without_reply[grader],
                reasons=dict(sorted(self.reasons[grader].items(), key=lambda item: (-item[1], item[0]))),
            )
            for grader in sorted(self.calls)
        ]


def read_run(run: Run, *, rules: str | None, archive: Archive) -> RunReading:
    """Read a run's journal once; `rules` is a name, `both`, or None for the run's own."""
    experiment, phrases = run.experiment, run.phrases
    rounds = None if run.is_imported else {name: grader.votes or 0 for name, grader in run.graders.items()}
    tally, place = _Tally(), RunArchive(run.name)
    evaluated = [student_name(s) for step in experiment.steps for s in getattr(step, "students", [])]
    archive.introduce(run.name, evaluated, experiment.graders)
    with run.read() as journal:
        combinations = journal.combinations()
        calls = archive.watch_talks(tally.watch_calls(journal.calls("generate")), journal, place)
        texts = student_texts(calls, combinations, turns=run.turns)
        read = tally.watch(read_gradings(texts, journal.calls("grade"), phrases=phrases, rounds=rounds))
        found = ballots(texts, archive.watch_votes(read, journal, place), rounds=rounds)
    records = RunRecords(texts, found, phrases, rounds)
    seen_by_code: dict[Conversation, CodeEvidence] = {}
    if run.unchanged_catalog and run.graders_with_code:
        records, seen_by_code = _with_code(records, experiment, run.unchanged_catalog)
    own = run.rules().name
    names = ["default", "paper"] if rules == "both" else [rules or own]
    by_rules = {name: _cells(run, name, records) for name in names}
    main = names[0] if own not in by_rules else own
    cells, points = by_rules[main]
    students = list(dict.fromkeys(t.student for t in texts))
    datasets = run_datasets(run)
    lineages = run_lineages(run, experiment, students, datasets)
    return RunReading(
        facts=replace(_facts(run, records, cells), rules=main, not_sent=tuple(sorted(tally.not_sent))),
        cells=cells,
        by_rules={name: made[0] for name, made in by_rules.items()},
        decided=points,
        readability=tally.readability(run.name),
        shown=_shown(run.name, records, seen_by_code),
        archived=ArchivedRun(place, texts, points, seen_by_code, run.rules(main)),
        combinations=combinations,
        lineages=lineages,
        contenders=run_contenders(run, experiment, dict.fromkeys(c.place.student for c in cells), lineages),
        reserved=(experiment.leakage.reserved or None) if run.makes_data else None,
        datasets=datasets,
        curves=run_curves(run),
        catalog=run.unchanged_catalog,
    )


def _with_code(
    records: RunRecords, experiment: Experiment, catalog: Catalog
) -> tuple[RunRecords, dict[Conversation, CodeEvidence]]:
    """Ballots with the verdicts of code; each text is judged once, and the words that show a skill are kept."""
    code = RulesGrader(catalog)
    pure = [name for name, settings in experiment.graders.items() if settings.asked is None]
    others = {name: settings for name, settings in experiment.graders.items() if name not in pure}
    made = code.ballots([b for b in records.ballots if b.grader not in pure], others, [])
    found: dict[Conversation, CodeEvidence] = {}
    with_code = graders_with_code(experiment.graders)
    for text in records.texts:
        skills = text.combination.skills
        verdict = code.verdict(text.answer.text, skills=skills, topic=text.combination.topic)
        words = tuple(verdict.quote(verdict.evidence.get(skill)) for skill in skills)
        reasons = {name: applicable_reasons(verdict, is_alone=alone) for name, alone in with_code.items()}
        found[text.student, text.combination.id, text.generation] = CodeEvidence(words, verdict.unrequested, reasons)
        reading = reading_of(verdict, skills)
        made += [Ballot(text, name, 1, (reading,)) for name in pure]
    return replace(records, ballots=made), found


def _cells(run: Run, rules_name: str, records: RunRecords) -> tuple[tuple[Cell, ...], list[tuple[Ballot, Points]]]:
    rules = run.rules(rules_name)
    decided = [(ballot, ballot.points(rules, run.phrases)) for ballot in records.ballots]
    points = {id(ballot): p for ballot, p in decided}
    cells = largest_cells(
        group.cell(run.name, [[points[id(b)] if b else None for b in texts] for texts in group.texts])
        for group in groups_of(run, records)
    )
    return tuple(_without_skipped(list(cells.values()), run)), decided


def _without_skipped(cells: list[Cell], run: Run) -> list[Cell]:
    """Drop the cells that `stop_below` skipped, unless some of their texts are scored."""
    if not any(isinstance(s, EvaluateStep) and s.stop_below is not None for s in run.experiment.steps):
        return cells
    skipped = {cell[1:] for cell in skipped_cells(run.experiment, [score_of(cell, METRICS[0], run) for cell in cells])}
    return [
        c
        for c in cells
        if (c.place.student, c.place.setting, c.place.k) not in skipped or c.summary("full_marks").complete
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
        graders=graders or dict.fromkeys(sorted({b.grader for b in records.ballots}), "imported"),
        rounds={name: s.votes for name, s in experiment.graders.items()},
        generations=max(
            (s.generations for s in experiment.steps if isinstance(s, EvaluateStep | GenerateStep)), default=0
        ),
        texts=len(records.texts),
        graded=len({id(b.text) for b in records.ballots}),
        missing=sum(points is None for cell in cells for texts in cell.points for points in texts),
    )


def _shown(run: str, records: RunRecords, found: Mapping[Conversation, CodeEvidence]) -> list[Shown]:
    groups: dict[tuple[str, int], list[CodeEvidence]] = defaultdict(list)
    for text in records.texts:
        conversation = (text.student, text.combination.id, text.generation)
        if conversation in found and text.answer.text:
            groups[text.student, text.combination.k].append(found[conversation])
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
