"""Tables of outcomes: how often students comply, refuse and evade, and what changed between two students."""

from dataclasses import replace
from typing import Final
from urllib.parse import urlencode

from skillmix.prompts.rubric import OUTCOMES, TextOutcome
from skillmix.report.records import Report
from skillmix.report.registry import Count, Entry, Estimate, ReportTable, estimate, p_entry, table, table_of
from skillmix.scores.outcomes import TOPICS, OutcomeCell

_NOTE: Final = (
    "Shares of texts in which the student complies with the request, refuses it or evades it: mean over complete "
    "combinations, with 95% intervals over combinations. Probes are mild requests, controls their harmless twins, so "
    "that a refused control is an over-refusal. k counts the innocent writing skills that the request is mixed with; "
    "k = 0 is the request alone. The intervals are for these probes; other probes could give other shares."
)
_BOUNDS_NOTE: Final = (
    "If every text without an outcome had another outcome (at least), or this one where its votes allow it (at most). "
    "Texts have no outcome if they are not written, if their grades cannot be read, or if the rounds have no majority."
)
_CHANGES_NOTE: Final = (
    "The share of the second student minus that of the first on the combinations that both have complete, with 95% "
    "intervals. p comes from a permutation test within combinations and is corrected by Holm over the rows of the same "
    "students, topics and outcome."
)


@table(section="safety", order=10)
def outcome_shares(report: Report) -> ReportTable | None:
    """The three shares by student, grader, setting, probes or controls, and k."""
    return table_of(
        "outcomes",
        "Outcomes by k",
        _NOTE,
        (
            {
                **_heads(report, cell),
                **{outcome: _linked(cell, outcome) for outcome in OUTCOMES},
                "combinations": Count(len(cell.cell.combinations)),
                "undecided": Count(cell.share(OUTCOMES[0]).undecided),
            }
            for cell in _by_student(report)
        ),
    )


def _by_student(report: Report) -> list[OutcomeCell]:
    """The cells in the order of students, then of graders and settings, then probes before controls, by k."""
    places = list(dict.fromkeys((c.key.run, c.key.student, c.key.grader, c.key.setting) for c in report.outcomes))
    students = list(dict.fromkeys(place[:2] for place in places))
    return sorted(
        report.outcomes,
        key=lambda c: (students.index(c.key[:2]), places.index(c.key[:4]), TOPICS.index(c.topics), c.key.k),
    )


def _heads(report: Report, cell: OutcomeCell) -> dict[str, Entry]:
    run, student, grader, setting, k = cell.key
    names = {"student": report.label(run, student), "grader": grader, "setting": setting, "topics": cell.topics}
    return {**names, "k": str(k)}


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
    return replace(estimate(share.value, (share.low, share.high)), link=link)


@table(section="safety", order=30)
def outcome_bounds(report: Report) -> ReportTable | None:
    """The bounds of the shares in cells with undecided texts."""
    undecided = [cell for cell in _by_student(report) if cell.share(OUTCOMES[0]).undecided]
    if not undecided:
        return None
    heads = [_heads(report, cell) for cell in undecided]
    shares = [[cell.share(outcome) for outcome in OUTCOMES] for cell in undecided]
    ends = [[Estimate(end) for s in own for end in (s.bound_low, s.bound_high)] for own in shares]
    return ReportTable(
        name="outcome-bounds",
        title="Bounds of the outcomes with undecided texts",
        note=_BOUNDS_NOTE,
        columns=(*heads[0], *(("at least", "at most") * len(OUTCOMES))),
        rows=tuple((*head.values(), *bounds) for head, bounds in zip(heads, ends, strict=True)),
        groups=(("", len(heads[0])), *((outcome, 2) for outcome in OUTCOMES)),
        is_detail=True,
    )


@table(section="safety", order=40)
def outcome_change_table(report: Report) -> ReportTable | None:
    """Tuned students against their bases, or else each student against the first of its run."""
    is_tuned = all(change.is_tuned for change in report.outcome_changes)
    return table_of(
        "outcomes-compared",
        "Outcomes before and after tuning" if is_tuned else "Outcomes of students compared",
        _CHANGES_NOTE,
        (
            {
                "students": report.label(c.run, f"{c.student} − {c.base}"),
                "grader": c.grader,
                "setting": c.setting,
                "topics": c.topics,
                "k": str(c.k),
                "outcome": c.outcome,
                "difference": estimate(c.difference, (c.low, c.high), is_signed=True),
                "p": p_entry(c.p),
                "p, corrected": p_entry(c.p_corrected),
                "combinations": Count(c.combinations),
            }
            for c in report.outcome_changes
        ),
    )
