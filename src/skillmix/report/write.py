"""`skillmix report`: a folder that opens offline in a browser, in which each number leads to the texts behind it."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.novelty import MeasuredFrequencies
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, load_experiment
from skillmix.experiment.steps import ReportStep
from skillmix.models.lineage import trained_skill_sets
from skillmix.report.archive import Archive, without_cycle_search
from skillmix.report.read import MOST_TEXTS, RunReading, read_run
from skillmix.report.records import Report, SkillDefinition, by_key, student_pairs
from skillmix.runs.folder_replacement import REPORT, REPORT_MARK, REPORT_NOTE, replacing
from skillmix.runs.progress import say
from skillmix.runs.run import Run, open_run
from skillmix.scores.cards import cards_of
from skillmix.scores.comparisons import before_and_after
from skillmix.scores.findings import findings, judged_contrasts
from skillmix.scores.graders import grader_agreement, round_agreement


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


_HASH_LINE = re.compile(r"^(catalog_hash|prompts_hash): .*\n", re.MULTILINE)


def experiment_files(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """The experiment of every run that was not imported, as a file that `skillmix run` accepts."""
    for run in runs:
        if not run.is_imported:
            text = run.yaml
            hashes = "".join(f"# {found[0]}" for found in _HASH_LINE.finditer(text))
            about = "# The experiment of this report, with every default written out: skillmix run FILE\n"
            yield f"experiments/{run.name}.yaml", about + hashes + _HASH_LINE.sub("", text)


def reproducing_command(runs: Sequence[Run], options: Sequence[str]) -> str:
    """The commands that make the page again, from the experiment files in the report's folder."""
    made = [f"skillmix run {shlex.quote(f'experiments/{run.name}.yaml')}" for run in runs if not run.is_imported]
    names = [shlex.quote(run.name if not run.is_imported else str(run.path)) for run in runs]
    return "\n".join([*made, " ".join(["skillmix report", *names, *options])])


_CORPUS_TOKENS: Final = 2e12
"""Tokens of the corpus for the novelty bound, unless an option says otherwise."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The options of a report."""

    rules: str | None = None
    """The scoring rules: a name, `both`, or None for the rules of each run."""
    published: bool = False
    """Whether the tables of the paper are shown."""
    tokens: float | None = None
    """Tokens of the corpus for the novelty bound; None for 2e12."""
    frequencies: MeasuredFrequencies | None = None
    """Measured frequencies of skills for the novelty bound; None for the paper's upper bound of all skills."""
    figures: bool = True
    """Whether figures are drawn, which takes most of the time of a small report."""
    style: str | None = None
    """A further style in which figures are drawn: `paper` or `slide`."""
    texts: int = MOST_TEXTS
    """The most texts of each run that the pages show; scores count all texts."""

    @property
    def words(self) -> list[str]:
        """The options as the command line takes them."""
        rules = ["--rules", self.rules] if self.rules else []
        tokens = ["--tokens", f"{self.tokens:g}"] if self.tokens not in (None, _CORPUS_TOKENS) else []
        tokens += ["--frequencies", self.frequencies.file] if self.frequencies else []
        texts = ["--texts", str(self.texts)] if self.texts != MOST_TEXTS else []
        switches = ["--published"] * self.published + ["--no-figures"] * (not self.figures)
        return [*rules, *tokens, *texts, *switches]

    def over(self, step: ReportStep | None) -> "ReportOptions":
        """These options, completed by those of an experiment's report step."""
        if step is None:
            return self
        return replace(
            self,
            rules=self.rules or step.rules,
            published=self.published or step.published,
            tokens=self.tokens or step.tokens,
        )


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """A report on disk."""

    page: Path
    bytes: int
    files: int
    texts: int
    gaps: tuple[str, ...]


def report_step(experiment: Experiment, step: ReportStep, run: Run, **_: object) -> WrittenReport:
    """The report of a run in its own folder, with further runs where the step names some."""
    options = ReportOptions().over(step)
    return write_report([run, *(open_run(name) for name in step.runs)], output=run.path / "report", options=options)


def report(
    targets: Sequence[str], *, output: Path | None = None, options: ReportOptions | None = None
) -> WrittenReport:
    """The report of an experiment file, or of one or more runs."""
    runs, step = _runs_of(targets)
    others = f"-and-{len(runs) - 2}-more" if len(runs) > 2 else ""
    name = f"report-with-{runs[1].name}{others}" if len(runs) > 1 else "report"
    return write_report(runs, output=output or runs[0].path / name, options=(options or ReportOptions()).over(step))


def _runs_of(targets: Sequence[str]) -> tuple[list[Run], ReportStep | None]:
    runs: dict[Path, Run] = {}
    step = None
    for target in targets:
        names = [target]
        if target.endswith((".yaml", ".yml")):
            experiment = load_experiment(Path(target), checks_outside=False)
            step = next((s for s in experiment.steps if isinstance(s, ReportStep)), None)
            names = [experiment.name, *(step.runs if step else [])]
        for name in names:
            run = open_run(name)
            runs.setdefault(run.path.resolve(), run)
    _refuse_equal_names(list(runs.values()))
    return list(runs.values()), step


def _refuse_equal_names(runs: Sequence[Run]) -> None:
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(
            f"Two of the runs are called {twice!r}.", hint="Rename one folder, so that they can be told apart."
        )


def write_report(runs: Sequence[Run], *, output: Path, options: ReportOptions) -> WrittenReport:
    """Write a report of some runs; it replaces an older report once it is complete."""
    if options.rules not in (None, "default", "paper", "both"):
        raise UserError(f"There are no rules {options.rules!r}.", hint="Choose default, paper or both.")
    if options.style not in (None, "paper", "slide"):
        raise UserError(f"There is no style {options.style!r}.", hint="Choose paper or slide.")
    with replacing(output, REPORT) as new, without_cycle_search():
        writer = _Writer(new)
        writer.text(REPORT_MARK, REPORT_NOTE)
        texts, gaps = _fill(runs, options, writer)
    return WrittenReport(output / "index.html", writer.bytes, writer.files, texts, tuple(gaps))


class _Writer:
    """Writes files and counts their number and size."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bytes = 0
        self.files = 0

    def text(self, name: str, content: str) -> None:
        self.raw(name, content.encode("utf-8", "replace"))

    def raw(self, name: str, content: bytes) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.bytes += len(content)
        self.files += 1

    def within(self, folder: str) -> Callable[[str, str], None]:
        return lambda name, content: self.text(f"{folder}/{name}", content)


def _fill(runs: Sequence[Run], options: ReportOptions, writer: _Writer) -> tuple[int, list[str]]:
    from skillmix.report.contents import contents_of, styled_figures
    from skillmix.report.figures.style import STYLES
    from skillmix.report.page import ASSETS, asset, compare_page, index_page, texts_page
    from skillmix.report.tables.formats import paper_files, significance_marks, written_forms

    archive = Archive(writer.within("data"))
    readings = []
    for run in runs:
        say(f"report: reading {run.path}")
        readings.append(read_run(run, rules=options.rules, archive=archive, most_texts=options.texts))
    made = _report_of(readings, runs, options)
    say("report: writing texts, tables and figures")
    definitions = {d.name: [d.definition, d.example, d.category, d.side] for d in made.definitions.values()}
    facts = {"runs": [run.name for run in runs], "definitions": definitions}
    named = [r.facts.name for r in readings if r.outcomes]
    controls = sorted({c.topic for part in made.outcomes if part.topics == "controls" for c in part.cell.combinations})
    facts |= {"outcome_runs": named, "controls": controls} if named else {}
    archive.close([r.archived for r in readings], made.all_cells, list(student_pairs(made)), facts)
    contents = contents_of(made, figures=options.figures)
    for figure in contents.figures:
        writer.raw(f"figures/{figure.name}.svg", figure.print.svg)
        writer.raw(f"figures/{figure.name}.png", figure.print.png)
    for name, content in written_forms(contents.tables, significance_marks(made)):
        writer.text(f"tables/{name}", content)
    for name, raw in paper_files(made):
        writer.raw(f"paper/{name}", raw)
    for name, raw in styled_figures(made, STYLES[options.style]) if options.style else ():
        writer.raw(f"{options.style}/figures/{name}", raw)
    gaps = [*made.gaps, *contents.gaps]
    writer.text("index.html", index_page(made, contents, gaps, reproducing_command(runs, options.words)))
    writer.text("texts.html", texts_page(made))
    writer.text("compare.html", compare_page(made))
    for name in ASSETS:
        writer.text(name, asset(name))
    for name, content in experiment_files(runs):
        writer.text(name, content)
    return sum(r.facts.texts for r in readings), gaps


def _report_of(readings: Sequence[RunReading], runs: Sequence[Run], options: ReportOptions) -> Report:
    from skillmix.report.tables.scores import compared_pairs

    cells = tuple(cell for r in readings for cell in r.cells)
    agreements = {r.facts.name: grader_agreement(r.facts.name, r.decided) for r in readings}
    known = {c: combination for r in readings for c, combination in r.combinations.items()}
    lineages = {(r.facts.name, student): lineage for r in readings for student, lineage in r.lineages.items()}
    sets = {key: trained_skill_sets(lineage, known) for key, lineage in lineages.items()}
    catalogs = [r.catalog for r in readings if r.catalog]
    contenders = [c for r in readings for c in r.contenders]
    names = list(dict.fromkeys(name for r in readings for name in r.by_rules)) if options.rules == "both" else []
    # Only graders that can be compared with another one have cards.
    has_several = any(len({ballot.grader for ballot, _ in r.decided}) > 1 for r in readings)
    cards = cards_of([r.graded() for r in readings]) if has_several else []
    published = resources.files("skillmix.data").joinpath("published.json")
    report = Report(
        runs=tuple(r.facts for r in readings),
        cells=cells,
        by_rules={name: tuple(c for r in readings for c in r.by_rules.get(name, ())) for name in names},
        lineages=lineages,
        skill_sets={key: known_sets for key, known_sets in sets.items() if known_sets is not None},
        reserved={r.facts.name: r.reserved for r in readings if r.reserved is not None},
        contenders=tuple(contenders),
        contrasts=tuple(judged_contrasts(runs, contenders, by_key(cells))),
        findings=tuple(findings(contenders, by_key(cells))),
        changes=tuple(before_and_after(contenders, by_key(cells))),
        rounds=tuple(
            agreement
            for r in readings
            for agreement in round_agreement(r.facts.name, [b for b, _ in r.decided], r.graders_with_code)
        ),
        agreements=tuple(a for found_by_run, _ in agreements.values() for a in found_by_run),
        disagreements={name: tuple(worst) for name, (_, worst) in agreements.items() if worst},
        readability=tuple(x for r in readings for x in r.readability),
        cards=tuple(card for card in cards if card.labelled),
        datasets=tuple((r.facts.name, facts) for r in readings for facts in r.datasets),
        curves=tuple((r.facts.name, curve) for r in readings for curve in r.curves),
        step_seconds=tuple((r.facts.name, step, s) for r in readings for step, s in r.step_seconds.items()),
        shown=tuple(s for r in readings for s in r.shown),
        followed=tuple(f for r in readings for f in r.followed),
        templates=tuple(t for r in readings for t in r.templates),
        baselines=tuple(b for r in readings for b in r.baselines),
        categories={skill.name: skill.category for catalog in catalogs for skill in catalog.skills},
        definitions=definitions_of(
            [(r.facts.name, r.catalog, r.facts.partition) for r in readings if r.catalog],
            (skill for r in readings for c in r.all_cells for combo in c.combinations for skill in combo.skills),
        ),
        outcomes=tuple(cell for r in readings for cell in r.outcomes),
        outcome_changes=tuple(change for r in readings for change in r.outcome_changes),
        common_skills=frozenset(s for catalog in catalogs for s in catalog.exclude.get("common", ())),
        corpus_tokens=options.tokens or _CORPUS_TOKENS,
        frequencies=options.frequencies,
        published=json.loads(published.read_text(encoding="utf-8"))["tables"] if options.published else {},
    )
    return _with_gaps(replace(report, comparisons=tuple(compared_pairs(report))), readings)


def _gaps_of_run(reading: RunReading) -> Iterator[str]:
    facts = reading.facts
    if facts.missing:
        yield f"{facts.name}: {facts.missing:,} planned texts are not written or not graded."
    if facts.shown_texts is not None:
        yield (
            f"{facts.name}: the pages show {facts.shown_texts:,} of its {facts.texts:,} texts. Scores count all texts; "
            "what needs votes or words counts those that are shown: readability, agreement, grader cards, examples, "
            "templates, and skills that were not asked for."
        )
    without_cell = set(reading.students) - {cell.key.student for cell in reading.all_cells}
    if without_cell:
        students = ", ".join(sorted(without_cell))
        yield f"{facts.name}: the texts of {students} are in no cell, because they were not planned or not graded."
    for student, lineage in reading.lineages.items():
        drawn = {c.id for cell in reading.all_cells if cell.key.student == student for c in cell.combinations}
        trained_on = len(drawn & lineage.combinations)
        if trained_on:
            of = f"{trained_on} of the {len(drawn)} combinations"
            yield f"{facts.name}: {student} was trained on {of} it is scored on."
    yield from (f"{facts.name}: {note}." for note in reading.notes)
    if facts.catalog and reading.catalog is None:
        yield f"{facts.name}: its catalogue {facts.catalog} is gone or has changed."


def _with_gaps(report: Report, readings: Sequence[RunReading]) -> Report:
    gaps = [gap for reading in readings for gap in _gaps_of_run(reading)]
    if not report.lineages:
        gaps.append("No student has a lineage (`skillmix.json`), so their training data are unknown.")
    elif not report.skill_sets and not report.reserved:
        gaps.append("Seen and kept-back skill sets: no lineage says which skills were trained on together.")
    if report.has_only_outcomes:
        return replace(report, gaps=tuple(gaps))
    if not report.agreements:
        gaps.append("Agreement between graders: no text was graded by two.")
    if not report.rounds:
        gaps.append("Agreement between rounds: no grader voted twice on a text.")
    return replace(report, gaps=tuple(gaps))
