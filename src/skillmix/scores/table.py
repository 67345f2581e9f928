"""The tables of `skillmix scores`: one metric by k, everything that is known, and outcomes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from skillmix.grading.points import FULL_MARKS, METRICS, UNDECIDED
from skillmix.prompts.rubric import OUTCOMES
from skillmix.render import (
    html_table,
    markdown_table,
    p_value,
    panels,
    percent,
    share,
    share_with_interval,
    signed_with_interval,
    whole,
)
from skillmix.scores.cells import MOST_CUT, CellScore, valid_share
from skillmix.scores.outcomes import OutcomeChange, OutcomeScore
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS

_CELL = ("student", "grader", "setting", "k")
_COUNTS = ("complete", "ungraded", "format valid", "format failures", "cut")
_METRICS = tuple(metric.label for metric in METRICS.values())
_FULL = METRICS[FULL_MARKS].label
_HEADER = (*_CELL, *_METRICS, f"{_FULL}, one try", f"{_FULL} among valid", f"woven {_FULL}", *_COUNTS)
NOTE = (
    "Scores: the best text of each combination, mean over the complete combinations, with a 95 % interval. "
    "Format valid: the share of texts with the marker and an answer after it. Complete: combinations, over all k, "
    "whose texts are all graded."
)
WIDE_NOTE = (
    "A score takes the best text of each combination and the mean over complete combinations, with its 95 % interval. "
    f"Too few: a bootstrap over fewer than {FEWEST_COMBINATIONS} combinations gives no reliable interval. Complete "
    "counts combinations; ungraded (for full marks) and format failures count texts. Format valid is the share of "
    "texts with the marker and an answer after it, whatever skills they show; refusals do not count. Full marks among "
    "valid is the share of these texts that have full marks, one try. Woven full marks: the text also shows every "
    "skill about the topic; – where no code checks the skills. Cut counts texts whose reply ended at the token limit."
)


_RIGHT = frozenset(map(_HEADER.index, ("k", *_COUNTS)))


def score_table(scores: Iterable[CellScore], metric: str = FULL_MARKS) -> str:
    """One metric: a row for each setting, grader and student, a column for each k; as Markdown, for a terminal."""
    shown = [score for score in scores if score.sets == "all" and score.metric == metric]
    ks = sorted({score.k for score in shown})
    rows: dict[tuple[str, str, str], dict[int, CellScore]] = {}
    for setting in dict.fromkeys(score.setting for score in shown):
        for score in shown:
            if score.setting == setting:
                rows.setdefault((setting, score.grader, score.student), {})[score.k] = score
    names = _varying_names(shown)
    header = [*names, *(f"k = {k}" for k in ks), "format valid", "complete"]
    cells = [
        [*(name for column, name in zip(_NAMES, key, strict=True) if column in names), *_by_k(by_k, ks)]
        for key, by_k in rows.items()
    ]
    return panels(header, cells, names=len(names), right=frozenset({len(header) - 2, len(header) - 1}))


_NAMES = ("setting", "grader", "student")


def _varying_names(scores: Sequence[CellScore]) -> list[str]:
    """The columns of names: the student, and the setting and the grader if the scores have several."""
    several = {name: len({getattr(score, name) for score in scores}) > 1 for name in _NAMES}
    return [name for name in _NAMES if several[name] or name == "student"]


def _by_k(scores: Mapping[int, CellScore], ks: Sequence[int]) -> list[str]:
    """The scores of a row, the share of its texts with a valid format, and its complete combinations."""
    own = [scores.get(k) for k in ks]
    written, failures = sum(s.written for s in own if s), sum(s.format_failures for s in own if s)
    complete, combinations = sum(s.complete for s in own if s), sum(s.combinations for s in own if s)
    return [
        *(share_with_interval(s.value, s.low, s.high) if s else "–" for s in own),
        share(valid_share(failures, written)),
        f"{whole(complete)}/{whole(combinations)}",
    ]


def score_title(scores: Iterable[CellScore], metric: str = FULL_MARKS) -> str:
    """The metric of a short table, with the setting and the grader if all its rows share them."""
    shown = [score for score in scores if score.sets == "all" and score.metric == metric]
    names = _varying_names(shown)
    shared = [f"{name} {getattr(shown[0], name)}" for name in _NAMES if name not in names]
    title = f"{METRICS[metric].label} by k"
    return f"{title[0].upper()}{title[1:]}" + (f" ({', '.join(shared)})" if shared else "")


def wide_table(scores: Iterable[CellScore]) -> str:
    """Everything that is known of each student, grader, setting and k, one row each, as Markdown."""
    return markdown_table(_HEADER, _rows(scores), right=_RIGHT)


def score_table_html(scores: Iterable[CellScore]) -> str:
    """The wide table as HTML."""
    return html_table(_HEADER, _rows(scores), right=_RIGHT)


def _rows(scores: Iterable[CellScore]) -> list[Sequence[str]]:
    cells: dict[tuple[str, str, str, int], dict[str, CellScore]] = {}
    for score in scores:
        if score.sets != "all":
            continue
        cells.setdefault((score.student, score.grader, score.setting, score.k), {})[score.metric] = score
    return [_row(key, by_metric) for key, by_metric in cells.items()]


def set_table(scores: Iterable[CellScore]) -> str | None:
    """Reserved skill sets beside those that data sets may hold; None if the scores do not separate them."""
    by_cell: dict[tuple[str, str, int], dict[str, CellScore]] = {}
    for score in scores:
        if score.metric == FULL_MARKS and score.sets != "all":
            by_cell.setdefault((score.student, score.grader, score.k), {})[score.sets] = score
    if not by_cell:
        return None
    rows = [
        (*map(str, key), *(part for name in ("reserved", "seen") for part in _set_cells(by_sets[name])))
        for key, by_sets in by_cell.items()
    ]
    header = ("student", "grader", "k", "full marks, reserved sets", "complete", "full marks, seen sets", "complete")
    return markdown_table(header, rows, right=frozenset({2, 4, 6}))


def _set_cells(score: CellScore) -> tuple[str, str]:
    return share_with_interval(score.value, score.low, score.high), f"{score.complete}/{score.combinations}"


def trained_note(scores: Iterable[CellScore]) -> str | None:
    """A line for each student that was trained on combinations of the table; None if there is none."""
    trained = {
        (s.student, s.setting, s.k): (s.trained_on, s.combinations)
        for s in scores
        if s.trained_on and s.sets == "all" and s.metric == FULL_MARKS
    }
    lines = [
        f"{st} was trained on {n} of the {of} combinations of {se}, k = {k}."
        for (st, se, k), (n, of) in trained.items()
    ]
    return "\n".join(lines) or None


def cut_lines(scores: Iterable[CellScore]) -> list[str]:
    """A warning for each student of whose replies too many ended at the token limit, with the worst cell."""
    worst: dict[str, CellScore] = {}
    for score in scores:
        if score.metric != FULL_MARKS or score.sets != "all" or (score.cut_share or 0.0) <= MOST_CUT:
            continue
        if score.student not in worst or (score.cut_share or 0.0) > (worst[score.student].cut_share or 0.0):
            worst[score.student] = score
    return [
        f"{student}: the token limit cut {percent(s.cut_share or 0.0)} of the replies at {s.setting}, k = {s.k} "
        f"({whole(s.cut or 0)} of {whole(s.written)}); raise its max_tokens, unless these replies would never end"
        for student, s in worst.items()
    ]


def _row(key: tuple[str, str, str, int], by_metric: dict[str, CellScore]) -> Sequence[str]:
    full = by_metric[FULL_MARKS]
    return (
        *map(str, key),
        *(share_with_interval(m.value, m.low, m.high) for m in (by_metric[name] for name in METRICS)),
        share_with_interval(full.one_try, full.one_try_low, full.one_try_high),
        share_with_interval(full.among_valid, full.among_valid_low, full.among_valid_high),
        share_with_interval(full.woven, full.woven_low, full.woven_high),
        f"{full.complete}/{full.combinations}",
        str(full.ungraded),
        share(full.format_valid),
        str(full.format_failures),
        "–" if full.cut is None else str(full.cut),
    )


OUTCOME_NOTE: Final = (
    "Shares of texts in which the student complies, refuses or evades: mean over the complete combinations, with a "
    "95 % interval over combinations. Probes are the mild requests, controls their harmless twins; a refused control "
    "is an over-refusal. k = 0 is the request without skills. Undecided: texts without an outcome, over all k; between "
    "the bounds of --json the shares could still change."
)
_OUTCOME_NAMES: Final = ("setting", "grader", "student")


def outcome_title(scores: Sequence[OutcomeScore]) -> str:
    """What the table shows, with the setting and the grader if all its rows share them."""
    shared = [
        f"{name} {getattr(scores[0], name)}" for name in _OUTCOME_NAMES if scores and name not in _varying(scores)
    ]
    return "Outcomes by k" + (f" ({', '.join(shared)})" if shared else "")


def _varying(scores: Sequence[OutcomeScore]) -> list[str]:
    return [name for name in _OUTCOME_NAMES if name == "student" or len({getattr(score, name) for score in scores}) > 1]


def _laid_out(scores: Sequence[OutcomeScore]) -> tuple[list[str], list[list[str]]]:
    """The header, and a row for each student, kind of topics and outcome, with a column for each k."""
    names = [*_varying(scores), "topics", "outcome"]
    ks = sorted({score.k for score in scores})
    rows: dict[tuple[str, ...], dict[int, OutcomeScore]] = {}
    for score in sorted(scores, key=lambda s: (s.setting, s.grader)):
        rows.setdefault(tuple(str(getattr(score, name)) for name in names), {})[score.k] = score
    header = [*names, *(f"k = {k}" for k in ks), UNDECIDED]
    return header, [[*key, *_outcomes_by_k(by_k, ks)] for key, by_k in rows.items()]


def _outcomes_by_k(scores: Mapping[int, OutcomeScore], ks: Sequence[int]) -> list[str]:
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
