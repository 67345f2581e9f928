"""`skillmix report` writes a folder that opens offline in a browser; each number links to the texts behind it."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, load_experiment
from skillmix.experiment.steps import ReportStep
from skillmix.files import replacing
from skillmix.report import without_cycle_search
from skillmix.report.archive import Archive
from skillmix.report.read import read_report
from skillmix.report.records import REPORT, REPORT_MARK, REPORT_NOTE, ReportOptions
from skillmix.runs.progress import say
from skillmix.runs.run import Run, open_run

_HASH_LINE = re.compile(r"^(catalog_hash|prompts_hash): .*\n", re.MULTILINE)


def experiment_files(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield the experiment of every run that was not imported, as a file that `skillmix run` accepts."""
    for run in runs:
        if not run.is_imported:
            text = run.yaml
            hashes = "".join(f"# {found[0]}" for found in _HASH_LINE.finditer(text))
            about = "# The experiment of this report, with every default written out: skillmix run FILE\n"
            yield f"experiments/{run.name}.yaml", about + hashes + _HASH_LINE.sub("", text)


def reproducing_command(runs: Sequence[Run], options: Sequence[str]) -> str:
    """Return the commands that regenerate the page from the experiment files in the report's folder."""
    made = [f"skillmix run {shlex.quote(f'experiments/{run.name}.yaml')}" for run in runs if not run.is_imported]
    names = [shlex.quote(run.name if not run.is_imported else str(run.path)) for run in runs]
    return "\n".join([*made, " ".join(["skillmix report", *names, *options])])


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """A report on disk."""

    page: Path
    bytes: int
    files: int
    texts: int
    gaps: tuple[str, ...]


def report_step(experiment: Experiment, step: ReportStep, run: Run, **_: object) -> WrittenReport:
    """Write a report about a run, and about any further runs that the step lists, into the run's folder."""
    runs = [run, *(open_run(name) for name in step.runs)]
    return write_report(runs, output=run.path / "report", options=_completed(ReportOptions(), step))


def report(
    targets: Sequence[str], *, output: Path | None = None, options: ReportOptions | None = None
) -> WrittenReport:
    """Write a report about one or more runs, given by name, path or experiment file."""
    runs, step = _runs_of(targets)
    others = f"-and-{len(runs) - 2}-more" if len(runs) > 2 else ""
    name = f"report-with-{runs[1].name}{others}" if len(runs) > 1 else "report"
    completed = _completed(options or ReportOptions(), step)
    return write_report(runs, output=output or runs[0].path / name, options=completed)


def _completed(options: ReportOptions, step: ReportStep | None) -> ReportOptions:
    """Fill in options that were not given with those of an experiment's report step."""
    if step is None:
        return options
    published, tokens = options.published or step.published, options.tokens or step.tokens
    return replace(options, rules=options.rules or step.rules, published=published, tokens=tokens)


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
    names = [run.name for run in runs.values()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UserError(f"Two of the runs are called {twice!r}.", hint="Rename one folder to distinguish them.")
    return list(runs.values()), step


def write_report(runs: Sequence[Run], *, output: Path, options: ReportOptions) -> WrittenReport:
    """Write a report about the given runs; it replaces an older report in the folder once it is complete."""
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
    """Writes files, and counts them and their total size."""

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


def _fill(runs: Sequence[Run], options: ReportOptions, writer: _Writer) -> tuple[int, list[str]]:
    from skillmix.report.contents import contents_of, styled_figures
    from skillmix.report.figures.style import STYLES
    from skillmix.report.page import ASSETS, asset, index_page, script_page
    from skillmix.report.tables.formats import paper_files, significance_marks, written_forms

    archive = Archive(lambda name, content: writer.text(f"data/{name}", content))
    made = read_report(runs, archive, options)
    say("report: writing texts, tables and figures")
    definitions = {d.name: [d.definition, d.example, d.category, d.side] for d in made.definitions.values()}
    facts = {"runs": [run.name for run in runs], "definitions": definitions}
    if made.outcomes:
        probed = [part for part in made.outcomes if part.topics == "controls"]
        facts["outcome_runs"] = list(dict.fromkeys(part.key.run for part in made.outcomes))
        facts["controls"] = sorted({c.topic for part in probed for c in part.cell.combinations})
    archive.close(made, facts)
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
    for name in ("texts.html", "compare.html"):
        writer.text(name, script_page(made, name))
    for name in ASSETS:
        writer.text(name, asset(name))
    for name, content in experiment_files(runs):
        writer.text(name, content)
    return sum(facts.texts for facts in made.runs), gaps
