"""The HTML pages of a report: findings, texts, and two students compared; all text from outside is escaped."""

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib import resources
from typing import Final

from jinja2 import Environment, StrictUndefined

from skillmix.render.numbers import in_words, whole
from skillmix.report.contents import Contents, ReportFigure
from skillmix.report.layout.glossary import TERMS
from skillmix.report.layout.origin import period, simulated_models
from skillmix.report.layout.table_views import PUBLISHED_BLOCK, SECONDS, Block, TableBlock, blocks_of
from skillmix.report.outcomes.outcome_result import outcome_result
from skillmix.report.records import Report, by_key
from skillmix.report.sections import SECTIONS, SectionId
from skillmix.report.tables.published import PAPER
from skillmix.report.tables.table import Count, Dollars, Entry, Estimate, PValue, ScoreEntry, Seconds
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.claims import Claim
from skillmix.scores.findings import Finding
from skillmix.scores.format_effect import effect_between
from skillmix.scores.verdicts.finding_sentences import finding_sentence
from skillmix.scores.verdicts.main_result import CLAIM_TITLES

ASSETS: Final = (
    *("report.css", "texts.css"),
    *("page.js", "data.js", "search.js", "cards.js", "texts.js", "compare.js"),
)
# Characters that a browser acts on or a reader cannot see: controls, marks of direction, invisible letters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)

_CODE = re.compile("`([^`\n]+)`")
_PERCENT = re.compile(r"(\d) %")


def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return resources.files("skillmix.report").joinpath("files").joinpath(name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _ShownSection:
    """A section with its tables and figures as blocks."""

    id: str
    title: str
    intro: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class _SkillName:
    """A skill's name in a cell of a table, after the name of its run where there are several runs."""

    before: str
    name: str
    id: str


def index_page(report: Report, contents: Contents, gaps: Sequence[str], command: str) -> str:
    """The page with the result, findings, tables and figures; it can be read without its script."""
    environment = page_environment()
    environment.globals["skill"] = partial(_skill_name, list(report.definitions), {run.name for run in report.runs})
    sections = {
        s.id: _ShownSection(
            s.id, s.title, f"{s.intro}{_best_of(report) if s.id == 'scores' else ''}", tuple(blocks_of(s.items))
        )
        for s in contents.sections
    }
    return environment.from_string(asset("index.html")).render(
        report=report,
        title=_title(report),
        result=outcome_result(report) if report.has_only_outcomes else report.result,
        simulated=simulated_models(report),
        result_figure=next((b for b in _blocks(sections, "result") if isinstance(b, ReportFigure)), None),
        claims=_claims(report),
        missing_claims=missing_claims(report),
        needs=_needs(report),
        findings=SECTIONS["findings"],
        finding_blocks=_blocks(sections, "findings"),
        sections=[section for name, section in sections.items() if name not in ("result", "findings", "runs")],
        run_blocks=_blocks(sections, "runs"),
        period=period,
        has_times="time" in sections,
        gaps=gaps,
        command=command,
        terms=TERMS,
        definitions=report.definitions.values(),
    )


def _best_of(report: Report) -> str:
    """How a big number of the scores differs from the small one below it."""
    numbers = {run.generations for run in report.runs}
    number = numbers.pop() if len(numbers) == 1 else 0
    texts = f"best of {number} texts" if number > 1 else "best text"
    return f' A big number takes the {texts} of each combination; "one try" below it is the mean of single texts.'


def _blocks(sections: Mapping[SectionId, _ShownSection], name: SectionId) -> tuple[Block, ...]:
    return sections[name].blocks if name in sections else ()


def _skill_name(names: Sequence[str], runs: Container[str], text: str) -> _SkillName | None:
    """The skill that a cell names, with or without a run before it; None if it names something else."""
    before, colon, name = text.partition(": ")
    if before not in runs or name not in names:
        before, colon, name = "", "", text
    return _SkillName(before + colon, name, f"skill-{names.index(name) + 1}") if name in names else None


def texts_page(report: Report) -> str:
    """The page that shows texts; a script fills it."""
    return page_environment().from_string(asset("texts.html")).render(title=_title(report))


def compare_page(report: Report) -> str:
    """The page on which a reader picks two students; a script fills it."""
    return page_environment().from_string(asset("compare.html")).render(title=_title(report))


def page_environment() -> Environment:
    """What every template of a page may use; all text from outside is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["kind"] = _entry_kind
    environment.globals["head"] = asset("head.html").rstrip()
    environment.globals["term"] = _term_id
    environment.globals["is_ours"] = _is_ours
    environment.filters["visible"] = visible
    environment.filters["prose"] = prose
    environment.filters["whole"] = whole
    return environment


class _Html(str):
    """Text that is HTML already, so that a template does not escape it again."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def prose(text: object) -> _Html:
    r"""A sentence of the page as HTML: code between backticks, and no line break before a percent sign.

    >>> prose("95 % of `<b>`")
    '95\xa0% of <code>&lt;b&gt;</code>'
    """
    return _Html(_PERCENT.sub("\\1\N{NO-BREAK SPACE}%", _CODE.sub(r"<code>\1</code>", escape(visible(text)))))


_TERM_IDS: Final = {term.name: term.id for term in TERMS}


def _term_id(heading: str) -> str | None:
    """The address of the term that heads a column; None if the glossary does not have it."""
    return _TERM_IDS.get(heading.removesuffix(SECONDS))


def visible(text: object) -> str:
    """Text with each hidden character shown by its code.

    >>> visible("a\u202eb")
    'a⟨U+202E⟩b'
    """
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", str(text))


def _entry_kind(entry: object) -> str:
    kinds = {
        ScoreEntry: "score",
        Estimate: "estimate",
        Count: "count",
        Seconds: "count",
        Dollars: "count",
        PValue: "p",
        ReportFigure: "figure",
    }
    return kinds.get(type(entry), "words")


def _is_ours(block: TableBlock, row: Sequence[Entry]) -> bool:
    """Whether a row among published figures is one of these runs."""
    return block.id == PUBLISHED_BLOCK and row[1] != PAPER


def _claims(report: Report) -> list[tuple[str, list[tuple[Finding, str, str]]]]:
    """Each claim with its findings, their sentences, and the style class of their verdicts."""
    claims = dict.fromkeys(finding.claim for finding in report.claims)
    cells = by_key(report.cells)
    return [
        (
            CLAIM_TITLES[claim],
            [(f, claim_sentence(f, cells), f.verdict.replace(" ", "-")) for f in report.claims if f.claim == claim],
        )
        for claim in claims
    ]


def _title(report: Report) -> str:
    return " and ".join(run.name for run in report.runs)


_NEEDS: Final[dict[Claim, str]] = {
    "composition": "two students tuned on one base, one with k of 2 or more and one with k = 1 alone, both evaluated "
    "at k of 2 or more",
    "trained k": "a base and a student tuned on it, both evaluated on train skills at a k that it was trained on",
    "held-out": "a base and a student tuned on it with k of 2 or more, both evaluated on held-out skills",
    "larger k": "a base and a student tuned on it, both evaluated at a larger k than it was trained on",
    "efficiency": "two students tuned on one base, the one with the larger k on no more conversations than the other",
    "control": "a base and a student tuned on it with k = 1 alone, both evaluated at k of 2 or more",
}


def claim_sentence(finding: Finding, cells: Mapping[CellKey, Cell]) -> str:
    """The sentence about a finding, and where format explains a difference or hides skill."""
    students = finding.first, finding.second
    notes = []
    for c in finding.compared:
        effect = effect_between(students, finding.runs, (finding.grader, finding.setting, c.k), cells, c.found)
        words = effect.words(*students)
        notes += [f" At k = {c.k}, {words}."] if words else []
    return finding_sentence(finding) + "".join(notes)


def _needs(report: Report) -> str:
    """A line about the claims without data; empty if there is none."""
    missing = missing_claims(report)
    if not missing:
        return ""
    claims = f"{in_words(len(missing)).capitalize()} of {in_words(len(CLAIM_TITLES))} claims about learning"
    return f"{claims} cannot be judged: they need other students, settings or k."


def missing_claims(report: Report) -> list[tuple[str, str]]:
    """Claims that the runs have no data for, and what data they would need."""
    judged = {finding.claim for finding in report.claims}
    return [
        (title, f"The runs do not have {_NEEDS[claim]}.")
        for claim, title in CLAIM_TITLES.items()
        if claim not in judged
    ]
