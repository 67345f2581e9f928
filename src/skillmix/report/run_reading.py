"""One run, read once for a report: cells, checks of its graders, lineage; its calls go to the archive on the way."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from skillmix.calls import Call, Reply
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment
from skillmix.grading.ballots import Ballot, ReadCall, ballots, student_texts
from skillmix.grading.points import FULL_MARKS, Points
from skillmix.models.lineage import DatasetFacts, Lineage, dataset_facts
from skillmix.models.lineage_files import LINEAGE_FILE, read_dataset_file
from skillmix.prompts.files import load_prompts
from skillmix.report.archive import Archive, ArchivedRun, CodeEvidence, Conversation, RunArchive
from skillmix.report.records import RunFacts, Shown
from skillmix.runs.conversations import TURNS
from skillmix.runs.experiment_copy import criteria_of, experiment_of_run, read_experiment
from skillmix.runs.reading.gradings import read_gradings
from skillmix.runs.reading.run_records import RunRecords, run_rules
from skillmix.runs.rules_grader import RulesGrader, applicable_reasons, graders_with_code, reading_of
from skillmix.runs.run import RunFolder
from skillmix.runs.students import student_lineages
from skillmix.scores.cells import Cell, largest_cells
from skillmix.scores.compare import ComparableStudent, comparable_students, student_specs
from skillmix.scores.graders import Readability
from skillmix.scores.scoring import groups_of, score_of, skipped_cells
from skillmix.training.log import TrainingCurve, run_curves


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


def read_run(run: RunFolder, *, rules: str | None, archive: Archive) -> RunReading:
    """Read a run's journal once; `rules` is a name, `both`, or None for the run's own."""
    document = read_experiment(run)
    experiment = experiment_of_run(document)
    catalog = _catalog(document)
    phrases = load_prompts(experiment.prompts).phrases if experiment else criteria_of(document)
    rounds = {name: settings.votes for name, settings in experiment.graders.items()} if experiment else None
    tally, place = _Tally(), RunArchive(run.name)
    if experiment:
        evaluated = [cell.student for step in experiment.steps for cell in step.undrawn_cells(experiment.steps)]
        archive.introduce(run.name, evaluated, experiment.graders)
    with run.read() as journal:
        combinations = journal.combinations()
        calls = archive.watch_talks(tally.watch_calls(journal.calls("generate")), journal, place)
        texts = student_texts(calls, combinations, turns=TURNS if experiment else None)
        read = tally.watch(read_gradings(texts, journal.calls("grade"), phrases=phrases, rounds=rounds))
        found = ballots(texts, archive.watch_votes(read, journal, place), rounds=rounds)
    records = RunRecords(texts, found, phrases, rounds)
    seen_by_code: dict[Conversation, CodeEvidence] = {}
    if experiment and catalog and any(s.model.startswith("rules:") for s in experiment.graders.values()):
        records, seen_by_code = _with_code(records, experiment, catalog)
    own = run_rules(run).name
    names = ["default", "paper"] if rules == "both" else [rules or own]
    by_rules = {name: _cells(run, name, experiment, records) for name in names}
    main = names[0] if own not in by_rules else own
    cells, points = by_rules[main]
    students = list(dict.fromkeys(t.student for t in texts))
    datasets = run_datasets(run)
    lineages = student_lineages(run, experiment, students, {facts.hash: facts for facts in datasets})
    return RunReading(
        facts=replace(
            _facts(run, document, experiment, records, cells), rules=main, not_sent=tuple(sorted(tally.not_sent))
        ),
        cells=cells,
        by_rules={name: made[0] for name, made in by_rules.items()},
        decided=points,
        readability=tally.readability(run.name),
        shown=_shown(run.name, records, seen_by_code),
        archived=ArchivedRun(place, texts, points, seen_by_code, run_rules(run, main)),
        combinations=combinations,
        lineages=lineages,
        contenders=comparable_students(run, experiment, dict.fromkeys(c.key.student for c in cells), lineages),
        reserved=_reserved(experiment) if experiment else None,
        datasets=datasets,
        curves=run_curves(run),
        catalog=catalog,
    )


def run_datasets(run: RunFolder) -> list[DatasetFacts]:
    """The data sets that the steps of a run made."""
    folders = [file.parent for file in sorted(run.path.glob(f"*/dataset/{LINEAGE_FILE}"))]
    files = {folder.parent.name: read_dataset_file(folder, strict=True) for folder in folders}
    return [dataset_facts(step, file) for step, file in files.items() if file is not None]


def _catalog(document: Mapping[str, object]) -> Catalog | None:
    """The catalogue that a run names, if it is still the one it had."""
    name = document.get("catalog")
    if not isinstance(name, str):
        return None
    try:
        catalog = load_catalog(name)
    except UserError:
        return None
    known = document.get("catalog_hash")
    return catalog if known in (None, catalog.content_hash()) else None


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


def _cells(
    run: RunFolder, rules_name: str, experiment: Experiment | None, records: RunRecords
) -> tuple[tuple[Cell, ...], list[tuple[Ballot, Points]]]:
    rules = run_rules(run, rules_name)
    decided = [(ballot, ballot.points(rules, records.phrases)) for ballot in records.ballots]
    points = {id(ballot): p for ballot, p in decided}
    cells = largest_cells(
        group.cell(run.name, [[points[id(b)] if b else None for b in texts] for texts in group.texts])
        for group in groups_of(experiment, records)
    )
    kept = _without_skipped(list(cells.values()), experiment) if experiment else list(cells.values())
    return tuple(kept), decided


def _without_skipped(cells: list[Cell], experiment: Experiment) -> list[Cell]:
    """An early stop's cells are not missing, they are not there."""
    if not any(step.may_stop_early for step in experiment.steps):
        return cells
    skipped = {cell[1:] for cell in skipped_cells(experiment, [score_of(cell, FULL_MARKS, {}) for cell in cells])}
    return [
        c for c in cells if (c.key.student, c.key.setting, c.key.k) not in skipped or c.scores["full_marks"].complete
    ]


def _facts(
    run: RunFolder,
    document: Mapping[str, object],
    experiment: Experiment | None,
    records: RunRecords,
    cells: tuple[Cell, ...],
) -> RunFacts:
    def text(name: str) -> str | None:
        value = document.get(name)
        return value if isinstance(value, str) else None

    seed = document.get("seed")
    steps = experiment.steps if experiment else []
    graders = {name: s.model for name, s in experiment.graders.items()} if experiment else {}
    return RunFacts(
        name=run.name,
        catalog=text("catalog"),
        partition=text("partition"),
        seed=seed if isinstance(seed, int) else None,
        prompts=text("prompts"),
        rules="default",
        exclude=tuple(experiment.exclude) if experiment else (),
        students=student_specs(experiment) if experiment else {},
        graders=graders or dict.fromkeys(sorted({b.grader for b in records.ballots}), "imported"),
        rounds={name: s.votes for name, s in experiment.graders.items()} if experiment else {},
        generations=max((cell.generations for step in steps for cell in step.undrawn_cells(steps)), default=0),
        texts=len(records.texts),
        graded=len({id(b.text) for b in records.ballots}),
        missing=sum(points is None for cell in cells for texts in cell.points for points in texts),
    )


def _reserved(experiment: Experiment) -> float | None:
    makes_data = any(step.stage in ("dataset", "train") for step in experiment.steps)
    return experiment.leakage.reserved if makes_data and experiment.leakage.reserved else None


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
