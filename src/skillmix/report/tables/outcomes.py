"""Tables of outcomes: how often students comply, refuse and evade, and what changed between two students."""

from typing import Final
from urllib.parse import urlencode

from skillmix.prompts.rubric import OUTCOMES, TextOutcome
from skillmix.report.records import Report
from skillmix.report.registry import Count, Entry, Estimate, PValue, ReportTable, table
from skillmix.scores.outcomes import TOPICS, OutcomeCell, OutcomeChange

_NOTE: Final = (
    "Shares of texts in which the student complies with the request, refuses it or evades it: mean over complete "
    "combinations, with 95 % intervals over combinations. Probes are mild requests, controls their harmless twins, so "
    "that a refused control is an over-refusal. k counts the innocent writing skills that the request is mixed with; "
    "k = 0 is the request alone. The intervals are for these probes; other probes could give other shares."
)
_BOUNDS_NOTE: Final = (
    "If every text without an outcome had another outcome (at least), or this one where its votes allow it (at most). "
    "Texts have no outcome if they are not written, if their grades cannot be read, or if the rounds have no majority."
)
_CHANGES_NOTE: Final = (
    "The share of the second student minus that of the first on the combinations that both have complete, with 95 % "
    "intervals. p comes from a permutation test within combinations and is corrected by Holm over the rows of the same "
    "students, topics and outcome."
)


@table(section="safety", order=10)
def outcome_shares(report: Report) -> ReportTable | None:
    """The three shares by student, grader, setting, probes or controls, and k."""
    if not report.outcomes:
        return None
    rows = [
        (
            *_head(report, cell),
            *(_linked(cell, outcome) for outcome in OUTCOMES),
            Count(len(cell.cell.combinations)),
            Count(cell.share(OUTCOMES[0]).undecided),
        )
        for cell in _by_student(report)
    ]
    return ReportTable(
        name="outcomes",
        title="Outcomes by k",
        note=_NOTE,
        columns=(*_HEAD, *OUTCOMES, "combinations", "undecided"),
        rows=tuple(rows),
    )


def _by_student(report: Report) -> list[OutcomeCell]:
    """The cells in the order of students, then of graders and settings, then probes before controls, by k."""
    places = list(dict.fromkeys((c.key.run, c.key.student, c.key.grader, c.key.setting) for c in report.outcomes))
    students = list(dict.fromkeys(place[:2] for place in places))
    return sorted(
        report.outcomes,
        key=lambda c: (students.index(c.key[:2]), places.index(c.key[:4]), TOPICS.index(c.topics), c.key.k),
    )


_HEAD: Final = ("student", "grader", "setting", "topics", "k")


def _head(report: Report, cell: OutcomeCell) -> tuple[Entry, ...]:
    run, student, grader, setting, k = cell.key
    return report.label(run, student), grader, setting, cell.topics, str(k)


def _linked(cell: OutcomeCell, outcome: TextOutcome) -> Entry:
    share = cell.share(outcome)
    key = cell.key
    filters = {
        "a": f"{key.run}/{key.student}",
        "grader": f"{key.run}/{key.grader}",
        "setting": key.setting,
        "k": key.k,
        "outcome": outcome,
        "request": cell.topics,
    }
    link = f"texts.html#{urlencode(filters)}"
    return Estimate(share.value, share.low, share.high, is_too_few=share.low is None, link=link)


@table(section="safety", order=30)
def outcome_bounds(report: Report) -> ReportTable | None:
    """The bounds of the shares in cells with undecided texts."""
    undecided = [cell for cell in _by_student(report) if cell.share(OUTCOMES[0]).undecided]
    if not undecided:
        return None
    rows = [(*_head(report, cell), *(end for o in OUTCOMES for end in _bounds(cell, o))) for cell in undecided]
    return ReportTable(
        name="outcome-bounds",
        title="Bounds of the outcomes with undecided texts",
        note=_BOUNDS_NOTE,
        columns=(*_HEAD, *(end for _ in OUTCOMES for end in ("at least", "at most"))),
        rows=tuple(rows),
        groups=(("", len(_HEAD)), *((outcome, 2) for outcome in OUTCOMES)),
        is_detail=True,
    )


def _bounds(cell: OutcomeCell, outcome: TextOutcome) -> tuple[Entry, Entry]:
    share = cell.share(outcome)
    return Estimate(share.bound_low), Estimate(share.bound_high)


@table(section="safety", order=40)
def outcome_change_table(report: Report) -> ReportTable | None:
    """Tuned students against their bases, or else each student against the first of its run."""
    changes = report.outcome_changes
    if not changes:
        return None
    return ReportTable(
        name="outcomes-compared",
        title=(
            "Outcomes before and after tuning" if all(c.is_tuned for c in changes) else "Outcomes of students compared"
        ),
        note=_CHANGES_NOTE,
        columns=(
            *("students", "grader", "setting", "topics", "k", "outcome"),
            *("difference", "p", "p, corrected", "combinations"),
        ),
        rows=tuple(_change_row(report, change) for change in changes),
    )


def _change_row(report: Report, change: OutcomeChange) -> tuple[Entry, ...]:
    return (
        report.label(change.run, f"{change.student} − {change.base}"),
        *(change.grader, change.setting, change.topics, str(change.k), change.outcome),
        Estimate(change.difference, change.low, change.high, is_signed=True, is_too_few=change.low is None),
        *(PValue(change.p), PValue(change.p_corrected), Count(change.combinations)),
    )
