"""The table by partition: how far a difference between two students varies from one partition to the next."""

from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean, stdev
from typing import Final

from skillmix.experiment.step_base import label_parts
from skillmix.grading.points import FULL_MARKS
from skillmix.report.records import Report
from skillmix.report.registry import table
from skillmix.report.tables.table import Count, Entry, Estimate, ReportTable

_Values = dict[str, list[float]]
"""Full marks by combination, of one student or of those that the file repeats for several seeds."""
_Place = dict[int, dict[str, dict[str, _Values]]]
"""Values by k, partition and name of the student in the file."""


@table(section="compare", order=5)
def partition_table(report: Report) -> ReportTable | None:
    """The first supported finding over several partitions, else the first finding, else the first two students."""
    places = _places(report)
    pooled = [f for f in report.findings if any(c.gain.partitions > 1 for c in f.compared)]
    if not places:
        return None
    grader, setting = max(places, key=lambda place: place[1] == "held-out")
    students = dict.fromkeys(s for by_k in places[grader, setting].values() for names in by_k.values() for s in names)
    pair = tuple(students)[:2]
    if pooled:
        finding = max(pooled, key=lambda f: f.verdict == "supported")
        grader, setting, pair = finding.grader, finding.setting, (finding.first, finding.second)
    rows = list(_rows(places.get((grader, setting), {}), pair)) if len(pair) > 1 else []
    if not rows:
        return None
    return ReportTable(
        name="by-partition",
        title=f"By partition: {pair[1]} against {pair[0]}",
        note=f"{_NOTE} Setting {setting}, grader {grader}.",
        columns=("k", "partition", *pair, "difference", "combinations"),
        rows=tuple(rows),
    )


_NOTE: Final = (
    "Full marks, best of the generations, on the combinations that both students have complete; several training seeds "
    "count with their mean. Last at each k: the mean of the differences, their standard deviation between partitions, "
    "the smallest and the largest."
)


def _places(report: Report) -> dict[tuple[str, str], _Place]:
    """The values of each grader and setting, as far as steps name a partition."""
    families = {(run.name, student): family for run in report.runs for student, family in run.families.items()}
    places: dict[tuple[str, str], _Place] = {}
    for cell in report.cells:
        run, student, grader, label, k = cell.key
        setting, _, partition = label_parts(label)
        if partition:
            place = places.setdefault((grader, setting), {}).setdefault(k, {}).setdefault(partition, {})
            values = place.setdefault(families.get((run, student), student), defaultdict(list))
            for combination, value in cell.best(FULL_MARKS).items():
                values[combination].append(value)
    return places


def _rows(place: _Place, pair: tuple[str, ...]) -> Iterator[tuple[Entry, ...]]:
    for k, partitions in sorted(place.items()):
        differences = []
        for partition, students in partitions.items():
            first, second = (students.get(name, {}) for name in pair)
            shared = sorted(first.keys() & second.keys())
            if shared:
                means = [fmean(fmean(values[c]) for c in shared) for values in (first, second)]
                differences.append(means[1] - means[0])
                yield str(k), partition, *map(Estimate, means), _signed(differences[-1]), Count(len(shared))
        if len(differences) > 1:
            spread = {"mean": _signed(fmean(differences)), "sd": Estimate(stdev(differences))}
            spread |= {"lowest": _signed(min(differences)), "highest": _signed(max(differences))}
            yield from ((str(k), name, "–", "–", value, "–") for name, value in spread.items())


def _signed(value: float) -> Estimate:
    return Estimate(value, is_signed=True)
