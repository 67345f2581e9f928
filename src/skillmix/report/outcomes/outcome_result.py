"""The first screen of a report whose runs have outcomes and no scores."""

from skillmix.prompts.rubric import TextOutcome
from skillmix.render.numbers import in_percent, points_interval
from skillmix.render.wording import plural
from skillmix.report.records import Report
from skillmix.scores.outcomes.outcome_scores import OutcomeCell
from skillmix.scores.verdicts.main_result import MainResult, ResultNumber, graded_texts


def outcome_result(report: Report) -> MainResult:
    """How often the first student refuses probes at the smallest and at the largest k, and what the others do."""
    lines = _lines(report)
    if not lines:
        return MainResult(
            "No text has an outcome yet",
            "",
            "Continue the run, then report again.",
            (graded_texts((o.cell for o in report.outcomes), "skills and a probe or control"),),
        )
    first, last = lines[0][0], lines[0][-1]
    key = first.key
    headline = f"{report.label(key.run, key.student)} refuses {_percent(first)} of the probes {_with(first)}"
    detail = "; ".join(_sentence(report, cells) for cells in lines)
    return MainResult(
        headline=headline if first is last else f"{headline} and {_percent(last)} {_with(last)}",
        detail=f"{detail}.",
        evidence=f"Setting {key.setting}, grader {key.grader}, "
        f"{plural(len(last.cell.combinations), 'combination')} {_with(last)}.{_controls(report, last)}",
        numbers=(
            _number(first, "refuses", "refused"),
            *([_number(last, "refuses", "refused")] if last is not first else []),
            *([_number(last, "complies", "complied with")] if last is first else []),
            graded_texts((o.cell for o in report.outcomes), "skills and a probe or control"),
        ),
        students=((key.run, key.student),),
        grader=key.grader,
        setting=key.setting,
        k=key.k,
    )


def _lines(report: Report) -> list[list[OutcomeCell]]:
    """The probes of each student by k, under the grader and setting of the first decided cell."""
    known = [c for c in report.outcomes if c.topics == "probes" and c.share("refuses").value is not None]
    if not known:
        return []
    place = next((c.key for c in known if c.key.setting == "all"), known[0].key)
    here = [c for c in known if (c.key.run, c.key.grader, c.key.setting) == (place.run, place.grader, place.setting)]
    students = dict.fromkeys(cell.key.student for cell in here)
    return [sorted((c for c in here if c.key.student == name), key=lambda c: c.key.k) for name in students]


def _sentence(report: Report, cells: list[OutcomeCell]) -> str:
    parts = [f"{_percent(cell)} {_with(cell)} ({_interval(cell)})" for cell in cells]
    return f"{report.label(cells[0].key.run, cells[0].key.student)} refuses {', '.join(parts)}"


def _with(cell: OutcomeCell) -> str:
    return "without skills" if cell.key.k == 0 else f"with {plural(cell.key.k, 'skill')}"


def _percent(cell: OutcomeCell, outcome: TextOutcome = "refuses") -> str:
    return f"{in_percent(cell.share(outcome).value or 0.0)} %"


def _interval(cell: OutcomeCell, outcome: TextOutcome = "refuses") -> str:
    share = cell.share(outcome)
    ends = points_interval(share.low, share.high)
    return f"95 % interval {ends}" if ends else "too few combinations for an interval"


def _controls(report: Report, probes: OutcomeCell) -> str:
    """The refusals of harmless requests in the same cell."""
    found = [c for c in report.outcomes if c.key == probes.key and c.topics == "controls"]
    if not found or found[0].share("refuses").value is None:
        return ""
    return f" It refuses {_percent(found[0])} of the controls {_with(found[0])} ({_interval(found[0])})."


def _number(cell: OutcomeCell, outcome: TextOutcome, verb: str) -> ResultNumber:
    return ResultNumber(
        _percent(cell, outcome), _interval(cell, outcome), f"of probes are {verb}, k = {cell.key.k}, {cell.key.student}"
    )
