"""The table of outcomes that `skillmix scores` prints for a run whose graders name outcomes."""

from collections.abc import Mapping, Sequence
from typing import Final

from skillmix.grading.outcomes.outcome_points import UNDECIDED
from skillmix.prompts.rubric import OUTCOMES
from skillmix.render.html import html_table
from skillmix.render.layout import panels
from skillmix.render.numbers import p_value, share_with_interval, signed_with_interval, whole
from skillmix.scores.outcomes.outcome_changes import OutcomeChange
from skillmix.scores.outcomes.outcome_scores import OutcomeScore

OUTCOME_NOTE: Final = (
    "Shares of texts in which the student complies, refuses or evades: mean over the complete combinations, with a "
    "95 % interval over combinations. Probes are the mild requests, controls their harmless twins; a refused control "
    "is an over-refusal. k = 0 is the request without skills. Undecided: texts without an outcome, over all k; between "
    "the bounds of --json the shares could still change."
)
_NAMES: Final = ("setting", "grader", "student")


def outcome_title(scores: Sequence[OutcomeScore]) -> str:
    """What the table shows, with the setting and the grader if all its rows share them."""
    shared = [f"{name} {getattr(scores[0], name)}" for name in _NAMES if scores and name not in _varying(scores)]
    return "Outcomes by k" + (f" ({', '.join(shared)})" if shared else "")


def _varying(scores: Sequence[OutcomeScore]) -> list[str]:
    return [name for name in _NAMES if name == "student" or len({getattr(score, name) for score in scores}) > 1]


def _laid_out(scores: Sequence[OutcomeScore]) -> tuple[list[str], list[list[str]]]:
    """The header, and a row for each student, kind of topics and outcome, with a column for each k."""
    names = [*_varying(scores), "topics", "outcome"]
    ks = sorted({score.k for score in scores})
    rows: dict[tuple[str, ...], dict[int, OutcomeScore]] = {}
    for score in sorted(scores, key=lambda s: (s.setting, s.grader)):
        rows.setdefault(tuple(str(getattr(score, name)) for name in names), {})[score.k] = score
    header = [*names, *(f"k = {k}" for k in ks), UNDECIDED]
    return header, [[*key, *_by_k(by_k, ks)] for key, by_k in rows.items()]


def _by_k(scores: Mapping[int, OutcomeScore], ks: Sequence[int]) -> list[str]:
    own = [scores.get(k) for k in ks]
    undecided, texts = sum(s.undecided for s in own if s), sum(s.texts for s in own if s)
    return [
        *(share_with_interval(s.value, s.low, s.high) if s else "–" for s in own),
        f"{whole(undecided)}/{whole(texts)}",
    ]


def outcome_table(scores: Sequence[OutcomeScore]) -> str:
    """The shares of outcomes as Markdown, for a terminal."""
    header, rows = _laid_out(scores)
    return panels(header, rows, names=len(_varying(scores)) + 2, right=frozenset({len(header) - 1}))


def outcome_table_html(scores: Sequence[OutcomeScore]) -> str:
    """The same table as HTML."""
    header, rows = _laid_out(scores)
    return html_table(header, rows, right=frozenset({len(header) - 1}))


def outcome_change_note(changes: Sequence[OutcomeChange]) -> str | None:
    """A line for each pair of students, setting, grader, kind of topics and outcome; None if there is none."""
    if not changes:
        return None
    groups: dict[tuple[str, ...], list[OutcomeChange]] = {}
    for change in changes:
        key = (change.student, change.base, change.grader, change.setting, change.topics, change.outcome)
        groups.setdefault(key, []).append(change)
    order = sorted(groups, key=lambda key: (*key[:4], key[4] != "probes", OUTCOMES.index(key[5])))
    lines = [
        f"{student} against {base}, {grader}, {setting}, {topics}, {outcome}: {_by_change(groups[key])}."
        for key in order
        for student, base, grader, setting, topics, outcome in [key]
    ]
    return "\n".join([_CHANGES, *lines])


_CHANGES: Final = (
    "Differences in shares on the combinations that both students have complete, with 95 % intervals; p is from a "
    "permutation test within combinations, corrected by Holm over the numbers of each line."
)


def _by_change(changes: Sequence[OutcomeChange]) -> str:
    return "; ".join(
        f"k = {c.k} {signed_with_interval(c.difference, c.low, c.high)}, p {p_value(c.p_corrected)}" for c in changes
    )
