"""The HTML pages of a report: the result, findings, tables and glossary, the texts, and a comparison of two students.

All text from outside is escaped. Wide tables show one metric at a time, and related tables share a block.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from skillmix.calls import HUMAN
from skillmix.render import in_words, listed, whole
from skillmix.report.contents import Contents, ReportFigure
from skillmix.report.records import Report, RunFacts, by_key
from skillmix.report.registry import FILES, LONG, PHRASES, SECTIONS, Entry, ReportTable, ScoreEntry, glossary
from skillmix.report.tables.data import PAPER
from skillmix.scores.sentences import CLAIM_NEEDS, CLAIM_TITLES, capital, claim_sentence

TERMS: Final = glossary()
"""The terms in the tables, with their meanings."""


def term_id(name: str) -> str | None:
    """Return the anchor of a term on the page; None if the term is not in the glossary."""
    return "term-" + "".join(c if c.isalnum() else "-" for c in name) if name in TERMS else None


def simulated_models(report: Report) -> str:
    """List scripted students, graders and raters, and students that are code, in sentences; empty if there are none."""
    facts = {run.name: run for run in report.runs}
    keys = dict.fromkeys(cell.key for cell in report.all_cells)
    students = {report.label(key.run, key.student): facts[key.run].students.get(key.student, "") for key in keys}
    graders = {report.label(key.run, key.grader): facts[key.run].graders.get(key.grader, "") for key in keys}

    def named(role: str, specs: Mapping[str, str], start: str) -> tuple[str, int]:
        """Name the models of a role whose model strings start with `start`, and count them.

        The names are listed only if the role also has other models.
        """
        names = [name for name, spec in specs.items() if spec.startswith(start)]
        which = "" if len(names) == len(specs) else f" {listed(names)}" if names else ""
        return f"the {role}{'' if len(names) == 1 else 's'}{which}", len(names)

    sentences = []
    scripted = [named("student", students, "scripted:"), named("grader", graders, "scripted:")]
    who = capital(" and ".join(words for words, count in scripted if count))
    if sum(count for _, count in scripted) == 1:
        sentences.append(f"{who} is simulated: a scripted model with rates set in advance, not a language model.")
    elif who:
        sentences.append(f"{who} are simulated: scripted models with rates set in advance, not language models.")
    words, count = named("student", students, "composer:")
    if count:
        are = f"{capital(words)} {'is' if count == 1 else 'are'}"
        sentences.append(f"{are} code that composes texts from clauses, not a language model.")
    raters = sorted({rater.removeprefix(HUMAN) for card in report.cards for rater in card.simulated})
    if len(raters) == 1:
        sentences.append(f"The rater {raters[0]} is simulated: a script with error rates set in advance, not a person.")
    elif raters:
        are = f"The raters {listed(raters)} are simulated"
        sentences.append(f"{are}: scripts with error rates set in advance, not people.")
    return " ".join(sentences)


def period(facts: RunFacts) -> str:
    """Describe when the calls of a run were made or, if it made no calls, when the run was first recorded.

    All times come from the run itself, so that a report of the same run does not change.
    """
    times = sorted([total.first for total in facts.calls] + [total.last for total in facts.calls])
    times = times or ([facts.invocations.began] if facts.invocations.began else [])
    if not times:
        return "unknown"
    first, last = (datetime.fromisoformat(at) for at in (times[0], times[-1]))
    start = f"{first.day} {first:%B %Y, %H:%M}"
    if f"{first:%Y-%m-%d %H:%M}" == f"{last:%Y-%m-%d %H:%M}":
        return f"{start} UTC"
    end = f"{last:%H:%M}" if first.date() == last.date() else f"{last.day} {last:%B %Y, %H:%M}"
    return f"{start} to {end} UTC"


PUBLISHED_BLOCK: Final = "published-and-ours"
"""The block that contains the paper's tables."""
_WIDEST: Final = 12
"""A table with more columns than this shows one metric at a time."""


@dataclass(frozen=True, slots=True)
class TableBody:
    """Rows under one heading."""

    id: str
    heading: str
    rows: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True, slots=True)
class TableView:
    """One table of a block. If a block has several tables, a switch selects one."""

    label: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    groups: tuple[tuple[str, int], ...]
    bodies: tuple[TableBody, ...]
    heads: int = 1
    """The number of columns that identify a row."""


@dataclass(frozen=True, slots=True)
class TableBlock:
    """One or more related tables, with a title, a note and files."""

    id: str
    title: str
    note: str
    views: tuple[TableView, ...]
    files: tuple[str, ...]
    is_detail: bool = False
    is_long: bool = False
    """Whether the page shows only the first rows until a reader requests the rest."""


Block = TableBlock | ReportFigure


def blocks_of(items: Iterable[ReportTable | ReportFigure]) -> Iterator[Block]:
    """Yield the blocks of a section; all tables of a family appear in the position of the first one."""
    every = list(items)
    families = set[str]()
    for item in every:
        if isinstance(item, ReportFigure):
            yield item
        elif not item.family:
            # split a table by metric if it is too wide and repeats the metrics under several groups
            is_wide = len(item.columns) > _WIDEST and len(_grouped(item)) > 1
            views = _metric_views([item], [TableBody("", "", ())]) if is_wide else [_plain_view(item, "")]
            is_long = not item.is_detail and len(item.rows) > LONG
            note = item.note.replace(PHRASES["scores"], "").strip()  # the glossary explains scores
            yield TableBlock(item.name, item.title, note, tuple(views), (item.name,), item.is_detail, is_long)
        elif item.family not in families:
            families.add(item.family)
            tables = [t for t in every if isinstance(t, ReportTable) and t.family == item.family]
            files = tuple(table.name for table in tables)
            if item.family == "scores":
                # Show the scores of all settings, with one body each; the widest table of a setting has every metric.
                parts = dict.fromkeys(table.part for table in tables)
                widest = [max((t for t in tables if t.part == part), key=lambda t: len(t.columns)) for part in parts]
                names = [next(t.name for t in tables if t.part == part) for part in parts]
                bodies = [TableBody(name, f"setting {part}", ()) for name, part in zip(names, parts, strict=True)]
                block = TableBlock("scores-by-k", "Scores by k", "", tuple(_metric_views(widest, bodies)), files)
            else:
                # Show the tables of the paper, selected by number.
                shown = tuple(_plain_view(table, table.part) for table in tables)
                note = "The paper gives no intervals. A row of these runs has its 95% interval below each value."
                block = TableBlock(PUBLISHED_BLOCK, "Published figures beside these runs", note, shown, files)
            if block.views:
                yield block


def _plain_view(table: ReportTable, label: str) -> TableView:
    heading = table.note if label else ""
    body = TableBody("", heading, table.rows)
    return TableView(label, table.columns, tuple(table.numeric), table.groups, (body,))


def _grouped(table: ReportTable) -> dict[str, dict[str, int]]:
    """Map each group to the column indexes of its headings; columns without a group identify the rows."""
    grouped: dict[str, dict[str, int]] = {}
    column = 0
    for heading, width in table.groups:
        if heading:
            grouped[heading] = {table.columns[c]: c for c in range(column, column + width)}
        column += width
    return grouped


def _metric_views(tables: Sequence[ReportTable], bodies: Sequence[TableBody]) -> list[TableView]:
    """Return a view for each metric with a column for each group; if there is only one group, return one view.

    Metrics that are unknown in all rows are omitted.
    """
    grouped = [_grouped(table) for table in tables]

    def rank(group: str) -> tuple[int, str]:
        """Return a sort key that orders groups such as k = 10 by number."""
        number = group.removeprefix("k = ")
        return (int(number) if number.isdecimal() else 0), group

    def is_known(entry: Entry) -> bool:
        number = entry.score if isinstance(entry, ScoreEntry) else entry
        return number != "–" if isinstance(number, str) else number.value is not None

    groups = sorted({group for columns in grouped for group in columns}, key=rank)
    labels = list(dict.fromkeys(label for columns in grouped for group in columns.values() for label in group))
    views = [
        view
        for label in labels
        for view in [_view(tables, bodies, label, [(group, group, label) for group in groups])]
        if any(is_known(entry) for body in view.bodies for row in body.rows for entry in row[view.heads :])
    ]
    if len(groups) > 1 or not views:
        return views
    known = [view.label for view in views]
    one = _view(tables, bodies, "", [(label, groups[0], label) for label in known])
    return [replace(one, groups=(("", one.heads), (groups[0], len(known))))]


def _view(
    tables: Sequence[ReportTable], bodies: Sequence[TableBody], name: str, chosen: Sequence[tuple[str, str, str]]
) -> TableView:
    """Make a view with the identifying columns and a column for each choice, a tuple of heading, group and metric."""
    first = tables[0]
    heads = 0 if first.groups[0][0] else first.groups[0][1]
    made = []
    for table, body in zip(tables, bodies, strict=True):
        columns = [_grouped(table).get(group, {}).get(label) for _, group, label in chosen]
        rows = tuple((*row[:heads], *("–" if c is None else row[c] for c in columns)) for row in table.rows)
        made.append(replace(body, rows=rows))
    names = (*first.columns[:heads], *(heading for heading, *_ in chosen))
    numeric = (*first.numeric[:heads], *(True for _ in chosen))
    return TableView(name, names, numeric, (), tuple(made), heads)


ASSETS: Final = (
    *("report.css", "texts.css"),
    *("page.js", "data.js", "search.js", "cards.js", "texts.js", "compare.js"),
)
# Characters that a browser would interpret or a reader cannot see: control, bidi and other invisible characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)

_CODE = re.compile("`([^`\n]+)`")


def asset(name: str) -> str:
    """Read one of the template, style and script files that ship with the package."""
    return (FILES / name).read_text(encoding="utf-8")


_OPEN: Final = ("scores", "compare", "safety")
"""Sections that the page does not collapse."""


def index_page(report: Report, contents: Contents, gaps: Sequence[str], command: str) -> str:
    """Make the page with the result, findings, tables and figures; it also works without its script."""
    environment = page_environment()
    names, runs = list(report.definitions), {run.name for run in report.runs}

    def skill(text: str) -> tuple[str, str, str] | None:
        """If a cell contains a skill, return its context (such as a run), name and anchor; otherwise None."""
        before, colon, name = text.partition(": ")
        if before not in runs or name not in names:
            before, colon, name = "", "", text
        return (before + colon, name, f"skill-{names.index(name) + 1}") if name in names else None

    environment.globals["skill"] = skill
    sections = contents.sections
    missing = missing_claims(report)
    claims = f"{in_words(len(missing)).capitalize()} of {in_words(len(CLAIM_TITLES))} claims about learning"
    # explain how a big score differs from the small score below it
    tries = {run.generations for run in report.runs}
    best = f"best of {max(tries)} texts" if len(tries) == 1 and max(tries) > 1 else "best text"
    cells = by_key(report.cells)
    sentences = [(f, claim_sentence(f, cells), f.verdict.replace(" ", "-")) for f in report.claims]
    return environment.from_string(asset("index.html")).render(
        report=report,
        title=_title(report),
        result=report.result,
        simulated=simulated_models(report),
        result_figure=next((b for b in sections.get("result", ()) if isinstance(b, ReportFigure)), None),
        claims=[
            (CLAIM_TITLES[claim], [one for one in sentences if one[0].claim == claim])
            for claim in dict.fromkeys(finding.claim for finding in report.claims)
        ],
        missing_claims=missing,
        needs=f"{claims} cannot be judged: they need other students, settings or k." if missing else "",
        headings=SECTIONS,
        best=f'A big number is the {best} of each combination; "one try" below it is the mean over single texts.',
        sections={name: blocks for name, items in sections.items() if (blocks := list(blocks_of(items)))},
        open=_OPEN,
        period=period,
        gaps=gaps,
        command=command,
        terms=TERMS.items(),
        definitions=report.definitions.values(),
    )


def script_page(report: Report, name: str) -> str:
    """Make the page for texts, or the page that compares two selected students; a script fills it in the browser."""
    return page_environment().from_string(asset(name)).render(title=_title(report))


def page_environment() -> Environment:
    """Make the Jinja environment for all page templates, which escapes all text from outside."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, optimized=False, trim_blocks=True, lstrip_blocks=True
    )
    kinds = {ScoreEntry: "score", str: "words", ReportFigure: "figure", TableBlock: "table"}
    environment.globals["kind"] = lambda entry: kinds.get(type(entry), "number")
    environment.globals["head"] = asset("head.html").rstrip()
    environment.globals["term"] = term_id
    # Whether a row among published numbers belongs to these runs.
    environment.globals["is_ours"] = lambda block, row: block.id == PUBLISHED_BLOCK and row[1] != PAPER
    environment.filters |= {"visible": visible, "prose": prose, "whole": whole}
    return environment


def prose(text: object) -> Markup:
    """Escape a sentence for a page, and mark text between backticks as code.

    >>> prose("95% of `<b>`")
    Markup('95% of <code>&lt;b&gt;</code>')
    """
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(visible(text)))))


def visible(text: object) -> str:
    """Replace each hidden character with its code point.

    >>> visible("a\u202eb")
    'a⟨U+202E⟩b'
    """
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", str(text))


def _title(report: Report) -> str:
    return " and ".join(run.name for run in report.runs)


def missing_claims(report: Report) -> list[tuple[str, str]]:
    """List claims for which the runs have no data, with the data that each claim needs."""
    judged = {finding.claim for finding in report.claims}
    return [
        (title, f"The runs do not have {CLAIM_NEEDS[claim]}.")
        for claim, title in CLAIM_TITLES.items()
        if claim not in judged
    ]
