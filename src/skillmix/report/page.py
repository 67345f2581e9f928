"""The two pages of a report: what was found, and the texts behind it. Everything from outside is escaped."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

from jinja2 import Environment, StrictUndefined

from skillmix.catalog.novelty import ASSUMPTIONS
from skillmix.grading.points import METRICS
from skillmix.render.numbers import whole
from skillmix.report.figures.drawing import ReportFigure
from skillmix.report.finding_sentences import CLAIMS, finding_sentence, missing_claims
from skillmix.report.records import Report
from skillmix.report.tables.table import Count, Estimate, PValue, ReportTable, ScoreEntry
from skillmix.scores.findings import Finding

ASSETS: Final = ("report.css", "texts.js")
# What a browser would act on, or nobody would see: controls, marks of direction, invisible letters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class PageSection:
    """Tables and figures under one heading."""

    id: str
    title: str
    intro: str
    items: tuple[ReportTable | ReportFigure, ...]


def asset(name: str) -> str:
    """A file that lies beside the pages."""
    return resources.files("skillmix.report").joinpath("files").joinpath(name).read_text(encoding="utf-8")


def index_page(
    report: Report, sections: Sequence[PageSection], findings_table: ReportTable | None, gaps: Sequence[str]
) -> str:
    """The first page; it needs no script."""
    environment = _environment()
    return environment.from_string(asset("index.html")).render(
        report=report,
        title=_title(report),
        glance=_glance(report),
        claims=_claims(report),
        unspoken=missing_claims(report),
        findings_table=findings_table,
        sections=sections,
        gaps=gaps,
        assumptions=ASSUMPTIONS,
        metrics=METRICS.values(),
    )


def texts_page(report: Report) -> str:
    """The page that shows texts; its script fills it."""
    return _environment().from_string(asset("texts.html")).render(title=_title(report))


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["kind"] = _entry_kind
    environment.filters["visible"] = visible
    environment.filters["whole"] = whole
    return environment


def visible(text: object) -> str:
    """Text in which nothing hides.

    >>> visible("a\u202eb")
    'a⟨U+202E⟩b'
    """
    return _HIDDEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", str(text))


def _entry_kind(entry: object) -> str:
    kinds = {
        ScoreEntry: "score",
        Estimate: "estimate",
        Count: "count",
        PValue: "p",
        ReportTable: "table",
        ReportFigure: "figure",
    }
    return kinds.get(type(entry), "words")


def _claims(report: Report) -> list[tuple[str, list[tuple[Finding, str, str]]]]:
    """Each claim with its findings, their sentences and what the page calls their verdicts."""
    claims = dict.fromkeys(finding.claim for finding in report.findings)
    return [
        (
            CLAIMS[claim],
            [(f, finding_sentence(f), f.verdict.replace(" ", "-")) for f in report.findings if f.claim == claim],
        )
        for claim in claims
    ]


def _title(report: Report) -> str:
    return " and ".join(run.name for run in report.runs)


def _glance(report: Report) -> list[tuple[str, str]]:
    texts, graded = sum(r.texts for r in report.runs), sum(r.graded for r in report.runs)
    combinations = {c.id for cell in report.cells for c in cell.combinations}
    ks = report.ks
    return [
        (whole(texts), "texts" if graded == texts else f"texts, {whole(graded)} graded"),
        (whole(len(combinations)), "combinations of skills and a topic"),
        (whole(len(report.students)), "student" if len(report.students) == 1 else "students"),
        (", ".join(report.graders) or "none", "grader" if len(report.graders) == 1 else "graders"),
        (f"{ks[0]} to {ks[-1]}" if len(ks) > 1 else str(ks[0]) if ks else "–", "skills in one text"),
    ]
