"""The table of the time that each step took."""

from typing import Final

from skillmix.report.records import Report
from skillmix.report.registry import table
from skillmix.report.tables.table import Entry, Estimate, ReportTable, Seconds
from skillmix.runs.seconds.kept_seconds import StepSeconds, added
from skillmix.runs.seconds.step_clock import PARTS, Part


@table(section="time", order=10)
def time_table(report: Report) -> ReportTable | None:
    """Wall seconds of each step by part, and the share of its device that it used."""
    if not report.step_seconds:
        return None
    every = added([seconds for _, _, seconds in report.step_seconds])
    parts = [part for part in PARTS if part in every.parts]
    rows = [_row(report.label(run, step), seconds, parts) for run, step, seconds in report.step_seconds]
    if len(rows) > 1:
        rows.append(_row("all", every, parts))
    return ReportTable(
        name="where-the-time-went",
        title="Where the time went",
        note=_NOTE,
        columns=("step", *parts, "sum", "device", "share"),
        rows=tuple(rows),
    )


_NOTE: Final = (
    "Wall seconds of each step, added up over all times that the step ran; at each moment a step is in one part. The "
    "share is the share of time in which the device worked: on a GPU as its driver counts it, on a CPU the CPU time "
    "divided by wall time and cores. A step whose models are served elsewhere has no device. Steps of which the run "
    "kept no figures, and reports, are not listed."
)


def _row(name: str, seconds: StepSeconds, parts: list[Part]) -> tuple[Entry, ...]:
    device = seconds.device
    return (
        name,
        *(Seconds(seconds.parts.get(part, 0.0)) for part in parts),
        Seconds(seconds.total),
        device.device if device else "–",
        Estimate(device.share if device else None),
    )
