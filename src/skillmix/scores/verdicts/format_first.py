"""Format before skill: students most of whose replies miss the format, named before any score."""

from collections import Counter
from collections.abc import Sequence

from skillmix.render.numbers import whole
from skillmix.scores.cells import WRITTEN, Cell


def format_warnings(cells: Sequence[Cell]) -> list[str]:
    """A line for each student of whose replies more than half have no marker or no answer, or are cut."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for cell in cells:
        if cell.key.grader == cells[0].key.grader:
            own = counts.setdefault((cell.key.run, cell.key.student), Counter())
            statuses = [status for texts in cell.statuses for status in texts]
            cuts = [bool(cut) for texts in cell.cuts for cut in texts] or [False] * len(statuses)
            written = [(status, cut) for status, cut in zip(statuses, cuts, strict=True) if status in WRITTEN]
            own["written"] += len(written)
            own["missed"] += sum(status != "fine" or cut for status, cut in written)
            own["cut"] += sum(cut for _, cut in written)
    several = len({run for run, _ in counts}) > 1
    return [
        f"Format before skill: {f'{run}: ' if several else ''}{student} misses the format in "
        f"{whole(own['missed'])} of its {whole(own['written'])} replies (no marker, no answer, or cut by the token "
        f"limit, as {whole(own['cut'])} were), so its scores say little about skill. Try `prompts: worked`, a larger "
        "`max_tokens`, or the marker that it writes, in `answer`."
        for (run, student), own in counts.items()
        if 2 * own["missed"] > own["written"]
    ]
