"""The two HTML pages of a report, one with the findings and one with the texts; all text from outside is escaped."""

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final

from jinja2 import Environment, StrictUndefined

from skillmix.catalog.novelty import ASSUMPTIONS
from skillmix.grading.points import METRICS
from skillmix.models.lineage import short_name
from skillmix.render.numbers import share, whole
from skillmix.report.contents import Contents, ReportFigure
from skillmix.report.records import Report, by_key
from skillmix.report.sections import SECTIONS
from skillmix.report.tables.table import Count, Estimate, PValue, ReportTable, ScoreEntry
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.findings import CONTROL_MARGIN, SMALLEST_GAIN, Claim, Compared, Finding
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
            CLAIMS[claim],
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


CLAIMS: Final[dict[Claim, str]] = {
    "held-out": "Tuning on train skills lifts texts with held-out skills",
    "larger k": "Tuning on texts with few skills lifts texts with more skills than trained on",
    "efficiency": "Skill-richer data teach more, with no more conversations",
    "control": "Data with single skills alone do not teach composition",
}
_NEEDS: Final[dict[Claim, str]] = {
    "held-out": "a base and a student tuned on it with k of 2 or more, both evaluated on held-out skills",
    "larger k": "a base and a student tuned on it, both evaluated at a larger k than it was trained on",
    "efficiency": "two students tuned on one base, the one with the larger k on no more conversations than the other",
    "control": "a base and a student tuned on it with k = 1 alone, both evaluated at k of 3 or more",
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


def finding_sentence(finding: Finding) -> str:
    """One sentence about a finding, with its numbers."""
    return _SENTENCES[finding.verdict](finding)


def missing_claims(report: Report) -> list[tuple[str, str]]:
    """Claims that the runs have no data for, and what data they would need."""
    judged = {finding.claim for finding in report.findings}
    return [(CLAIMS[claim], f"The runs do not have {_NEEDS[claim]}.") for claim in CLAIMS if claim not in judged]


def _supported(finding: Finding) -> str:
    if finding.claim == "control":
        worst = max(finding.compared, key=lambda c: c.gain.high)
        return (
            f"{_who(finding)} changes full marks by {_estimate(worst)} at k = {worst.k}, and at no k of "
            f"{_ks(finding.compared)} can the gain be {share(CONTROL_MARGIN)} or more."
        )
    found = [c for c in finding.compared if c.is_found and c.gain.mean > 0]
    best = max(found, key=lambda c: c.gain.mean)
    where = "every k tried" if len(found) == len(finding.compared) else "some k"
    return (
        f"{_who(finding)} lifts full marks by {_estimate(best)} at k = {best.k} ({_p(best)}); a gain is "
        f"found at {where}: {_ks(found)}" + ("." if where != "some k" else f" of {_ks(finding.compared)}.")
    )


def _not_supported(finding: Finding) -> str:
    if finding.claim == "control":
        found = [c for c in finding.compared if c.is_found and c.gain.mean >= CONTROL_MARGIN]
        best = max(found, key=lambda c: c.gain.mean)
        return f"{_who(finding)} does lift full marks, by {_estimate(best)} at k = {best.k} ({_p(best)})."
    worse = [c for c in finding.compared if c.is_found and c.gain.mean < 0]
    if worse:
        worst = min(worse, key=lambda c: c.gain.mean)
        return f"{_who(finding)} lowers full marks by {_estimate(worst)} at k = {worst.k} ({_p(worst)})" + (
            ", though it lifts them at others."
            if any(c.is_found and c.gain.mean > 0 for c in finding.compared)
            else "."
        )
    best = max(finding.compared, key=lambda c: c.gain.high)
    return (
        f"{_who(finding)} changes full marks by {_estimate(best)} at k = {best.k}, and at no k of "
        f"{_ks(finding.compared)} can the gain be {share(SMALLEST_GAIN)} or more."
    )


def _too_little(finding: Finding) -> str:
    best = max(finding.compared, key=lambda c: c.gain.mean)
    unit = best.gain.unit
    have = {"combinations": best.gain.combinations, "seeds": best.gain.seeds, "partitions": best.gain.partitions}[unit]
    need = (
        f"about {whole(finding.more)} more {unit} at each k would be needed to decide"
        if finding.more is not None and unit == "combinations"
        else f"about {whole(finding.more)} more {unit} would be needed to decide"
        if finding.more is not None
        else "the data cannot say how many more would be needed"
    )
    return (
        f"{_who(finding)} changes full marks by {_estimate(best)} at k = {best.k} ({_p(best)}) over "
        f"{whole(have)} {unit}; {need}."
    )


def _who(finding: Finding) -> str:
    """The second student against the first, with their training data."""
    first = f"{finding.first}" + (f", {short_name(finding.first_k)}" if finding.first_k else "")
    sizes = ""
    if finding.claim == "efficiency":
        sizes = f" ({whole(finding.second_rows or 0)} conversations against {whole(finding.first_rows or 0)})"
    return f"{finding.second}, tuned on {short_name(finding.second_k)}, against {first}{sizes},"


def _estimate(compared: Compared) -> str:
    gain = compared.gain
    return Estimate(gain.mean, gain.low, gain.high, is_signed=True).text


def _p(compared: Compared) -> str:
    text = PValue(compared.p_corrected).text
    return f"corrected p {text if text.startswith('<') else f'= {text}'}"


def _ks(compared: list[Compared] | tuple[Compared, ...]) -> str:
    return ", ".join(str(c.k) for c in compared)


_SENTENCES: Final = {"supported": _supported, "not supported": _not_supported, "too little data": _too_little}
