"""The scores of a run as curves over k."""

from collections.abc import Iterable, Mapping, Sequence

from skillmix.runs.run import Run
from skillmix.scores.cells import CellScore
from skillmix.scores.kept_scores import kept_scores
from skillmix.tracking.tracker import TrackedPart
from skillmix.tracking.tracking import FOLDER, tracking

SCORES = "scores"
"""The part of a run under which trackers show its scores."""


def track_scores(run: Run, names: Sequence[str]) -> None:
    """Show the scores of a run in its trackers; nothing happens without trackers, or if the run has no scores."""
    points = score_points(kept_scores(run).scores) if names and not run.has_outcomes else {}
    if not points:
        return
    facts = {"catalog": run.fact("catalog") or "", "seed": str(run.seed), "prompts": run.fact("prompts") or ""}
    with tracking(names, TrackedPart(run.name, SCORES, run.path / FOLDER), facts) as tracked:
        for k, values in points.items():
            tracked.log(values, step=k)


def score_points(scores: Iterable[CellScore]) -> dict[int, dict[str, float]]:
    """By k, the values and interval ends of all scores that have a value."""
    points: dict[int, dict[str, float]] = {}
    for score in scores:
        if score.sets != "all" or score.value is None:
            continue
        name = f"{score.metric}/{score.student}/{score.grader}/{score.setting}"
        ends: Mapping[str, float | None] = {"low": score.low, "high": score.high}
        own = points.setdefault(score.k, {})
        own[name] = score.value
        own |= {f"{name}/{end}": value for end, value in ends.items() if value is not None}
    return dict(sorted(points.items()))
