"""The two HTML pages of a report, one with the findings and one with the texts; all text from outside is escaped."""

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final

from jinja2 import Environment, StrictUndefined

from skillmix.catalog.novelty import ASSUMPTIONS
from skillmix.grading.points import METRICS
from skillmix.render.numbers import whole
from skillmix.report.contents import Contents, ReportFigure
from skillmix.report.finding_sentences import finding_sentence
from skillmix.report.records import Report, by_key
from skillmix.report.sections import SECTIONS
from skillmix.report.tables.table import Count, Estimate, PValue, ReportTable, ScoreEntry, Seconds
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.claims import Claim
from skillmix.scores.findings import Finding
from skillmix.scores.format_effect import effect_between

ASSETS: Final = ("report.css", "texts.js")
# Characters that a browser acts on or a reader cannot see: controls, marks of direction, invisible letters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return resources.files("skillmix.report").joinpath("files").joinpath(name).read_text(encoding="utf-8")


def index_page(report: Report, contents: Contents, gaps: Sequence[str]) -> str:
    """The page with findings, tables and figures; it needs no script."""
    environment = _environment()
    return environment.from_string(asset("index.html")).render(
        report=report,
        title=_title(report),
        glance=_glance(report),
        claims=_claims(report),
        missing_claims=missing_claims(report),
        findings=SECTIONS["findings"],
        finding_items=[item for section in contents.sections if section.id == "findings" for item in section.items],
        sections=[section for section in contents.sections if section.id != "findings"],
        gaps=gaps,
        assumptions=ASSUMPTIONS,
        metrics=METRICS.values(),
    )


def texts_page(report: Report) -> str:
    """The page that shows texts; a script fills it."""
    return _environment().from_string(asset("texts.html")).render(title=_title(report))


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["kind"] = _entry_kind
    environment.filters["visible"] = visible
    environment.filters["whole"] = whole
    return environment


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
        PValue: "p",
        ReportTable: "table",
        ReportFigure: "figure",
    }
    return kinds.get(type(entry), "words")


def _claims(report: Report) -> list[tuple[str, list[tuple[Finding, str, str]]]]:
    """Each claim with its findings, their sentences, and the style class of their verdicts."""
    claims = dict.fromkeys(finding.claim for finding in report.findings)
    cells = by_key(report.cells)
    return [
        (
            CLAIM_TITLES[claim],
            [(f, claim_sentence(f, cells), f.verdict.replace(" ", "-")) for f in report.findings if f.claim == claim],
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


CLAIM_TITLES: Final[dict[Claim, str]] = {
    "composition": "Texts that combine skills teach more than further practice of single skills",
    "trained k": "Tuning lifts texts with train skills, with as many skills as trained on",
    "held-out": "Tuning on train skills lifts texts with held-out skills",
    "larger k": "Tuning on texts with few skills lifts texts with more skills than trained on",
    "efficiency": "Skill-richer data teach more, with no more conversations",
    "control": "Data with single skills alone do not teach composition",
}
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
        effect = effect_between(students, finding.runs, (finding.grader, finding.setting, c.k), cells, c.gain)
        words = effect.words(*students)
        notes += [f" At k = {c.k}, {words}."] if words else []
    return finding_sentence(finding) + "".join(notes)


def missing_claims(report: Report) -> list[tuple[str, str]]:
    """Claims that the runs have no data for, and what data they would need."""
    judged = {finding.claim for finding in report.findings}
    return [
        (title, f"The runs do not have {_NEEDS[claim]}.")
        for claim, title in CLAIM_TITLES.items()
        if claim not in judged
    ]
