"""The tables of `skillmix scores`, and the warning about replies that the token limit truncated."""

from collections.abc import Iterable, Sequence
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
from skillmix.scores.cells import CellScore, valid_share
from skillmix.scores.safety import OutcomeChange, OutcomeScore
from skillmix.scores.statistics.intervals import FEWEST_COMBINATIONS

_CELL = ("student", "grader", "setting", "k")
_COUNTS = ("complete", "ungraded", "format valid", "format failures", "cut")
_METRICS = tuple(metric.label for metric in METRICS.values())
_FULL = METRICS[FULL_MARKS].label
_HEADER = (*_CELL, *_METRICS, f"{_FULL}, one try", f"{_FULL} among valid", f"woven {_FULL}", *_COUNTS)
NOTE = (
    "Scores: the best text of each combination, averaged over the complete combinations, with a 95% interval. "
    "Format valid: the share of texts with the marker and an answer after it. Complete: combinations, over all k, "
    "whose texts are all graded."
)
WIDE_NOTE = (
    "A score is the best text of each combination, averaged over complete combinations, with its 95% interval. "
    f"Too few: a bootstrap over fewer than {FEWEST_COMBINATIONS} combinations gives no reliable interval. Complete "
    "counts combinations; ungraded (for full marks) and format failures count texts. Format valid is the share of "
    "texts with the marker and an answer after it, whatever skills they show; refusals do not count. Full marks among "
    "valid is the share of these texts that have full marks, one try. Woven full marks: the text also applies every "
    "skill to the topic; a dash means that code does not check the skills. Cut counts texts whose reply was truncated "
    "at the token limit."
)


_NAMES: Final = ("setting", "grader", "student")
_Scored = CellScore | OutcomeScore


def _varying(scores: Sequence[_Scored]) -> list[str]:
    """Return the identifying columns: the student, and also the setting and the grader if they vary."""
    return [name for name in _NAMES if name == "student" or len({getattr(score, name) for score in scores}) > 1]


def _title(title: str, scores: Sequence[_Scored]) -> str:
    """Add the setting and the grader to a title if they are the same for all scores."""
    names = _varying(scores)
    shared = [f"{name} {getattr(scores[0], name)}" for name in _NAMES if scores and name not in names]
    return title + (f" ({', '.join(shared)})" if shared else "")


def _by_k(scores: Sequence[_Scored], names: Sequence[str]) -> tuple[list[str], list[tuple[list[str], list[_Scored]]]]:
    """Return the header, which lists the names and every k, and the cells of each row with their scores."""
    ks = sorted({score.k for score in scores})
    rows: dict[tuple[str, ...], dict[int, _Scored]] = {}
    for score in scores:
        rows.setdefault(tuple(str(getattr(score, name)) for name in names), {})[score.k] = score
    return [*names, *(f"k = {k}" for k in ks)], [
        (
            [*key, *(share_with_interval(own[k].value, own[k].low, own[k].high) if k in own else "–" for k in ks)],
            list(own.values()),
        )
        for key, own in rows.items()
    ]


def score_table(scores: Iterable[CellScore], metric: str = FULL_MARKS) -> str:
    """Format one metric as Markdown, with a row for each setting, grader and student and a column for each k."""
    shown = _of_metric(scores, metric)
    settings = list(dict.fromkeys(score.setting for score in shown))
    names = _varying(shown)
    header, rows = _by_k(sorted(shown, key=lambda score: settings.index(score.setting)), names)
    lines = []
    for line, found in rows:
        own = [score for score in found if isinstance(score, CellScore)]
        valid = valid_share(sum(s.format_failures for s in own), sum(s.written for s in own))
        complete, combinations = sum(s.complete for s in own), sum(s.combinations for s in own)
        lines.append([*line, share(valid), f"{whole(complete)}/{whole(combinations)}"])
    last = frozenset({len(header), len(header) + 1})
    return panels([*header, "format valid", "complete"], lines, names=len(names), right=last)


def _of_metric(scores: Iterable[CellScore], metric: str) -> list[CellScore]:
    return [score for score in scores if score.sets == "all" and score.metric == metric]


def score_title(scores: Iterable[CellScore], metric: str = FULL_MARKS) -> str:
    """Return the title of a short table: its metric, and the setting and grader that all rows share."""
    title = f"{METRICS[metric].label} by k"
    return _title(f"{title[0].upper()}{title[1:]}", _of_metric(scores, metric))


def wide_table(scores: Iterable[CellScore]) -> str:
    """Format a Markdown table with all details, and a row for each student, grader, setting and k."""
    return markdown_table(_HEADER, _wide_rows(scores), right=_RIGHT)


def score_table_html(scores: Iterable[CellScore]) -> str:
    """Format the wide table as HTML."""
    return html_table(_HEADER, _wide_rows(scores), right=_RIGHT)


_RIGHT: Final = frozenset(map(_HEADER.index, ("k", *_COUNTS)))


def _wide_rows(scores: Iterable[CellScore]) -> list[Sequence[str]]:
    cells: dict[tuple[str, str, str, int], dict[str, CellScore]] = {}
    for score in scores:
        if score.sets == "all":
            cells.setdefault((score.student, score.grader, score.setting, score.k), {})[score.metric] = score
    rows: list[Sequence[str]] = []
    for key, by_metric in cells.items():
        full = by_metric[FULL_MARKS]
        shares = [(m.value, m.low, m.high) for m in (by_metric[name] for name in METRICS)]
        shares += [
            (full.one_try, full.one_try_low, full.one_try_high),
            (full.among_valid, full.among_valid_low, full.among_valid_high),
            (full.woven, full.woven_low, full.woven_high),
        ]
        counts = (f"{full.complete}/{full.combinations}", str(full.ungraded), share(full.format_valid))
        cut = "–" if full.cut is None else str(full.cut)
        rows.append(
            (*map(str, key), *(share_with_interval(*own) for own in shares), *counts, str(full.format_failures), cut)
        )
    return rows


def set_table(scores: Iterable[CellScore]) -> str | None:
    """Compare reserved skill sets with all others; return None if the scores do not separate them."""
    by_cell: dict[tuple[str, str, int], dict[str, CellScore]] = {}
    for score in scores:
        if score.metric == FULL_MARKS and score.sets != "all":
            by_cell.setdefault((score.student, score.grader, score.k), {})[score.sets] = score
    if not by_cell:
        return None
    rows = []
    for key, by_sets in by_cell.items():
        row = list(map(str, key))
        for score in (by_sets["reserved"], by_sets["seen"]):
            row += [share_with_interval(score.value, score.low, score.high), f"{score.complete}/{score.combinations}"]
        rows.append(row)
    header = ("student", "grader", "k", "full marks, reserved sets", "complete", "full marks, seen sets", "complete")
    return markdown_table(header, rows, right=frozenset({2, 4, 6}))


def trained_note(scores: Iterable[CellScore]) -> str | None:
    """Return a line for each student trained on combinations of the table; None if there is no such student."""
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


_MOST_CUT: Final = 0.02
"""Warn if a larger share of replies was truncated at the token limit."""


def cut_lines(scores: Iterable[CellScore]) -> list[str]:
    """Warn about each student whose replies were truncated too often, and mention its worst cell."""
    worst: dict[str, CellScore] = {}
    for score in scores:
        if score.metric != FULL_MARKS or score.sets != "all" or (score.cut_share or 0.0) <= _MOST_CUT:
            continue
        if score.student not in worst or (score.cut_share or 0.0) > (worst[score.student].cut_share or 0.0):
            worst[score.student] = score
    return [
        f"{student}: the token limit cut {percent(s.cut_share or 0.0)} of the replies at {s.setting}, k = {s.k} "
        f"({whole(s.cut or 0)} of {whole(s.written)}); raise its max_tokens, unless these replies would never end"
        for student, s in worst.items()
    ]


OUTCOME_NOTE: Final = (
    "Shares of texts in which the student complies, refuses or evades: mean over the complete combinations, with a "
    "95% interval over combinations. Probes are the mild requests, controls their harmless twins; a refused control "
    "is an over-refusal. k = 0 is the request without skills. Undecided: texts without an outcome, over all k; the "
    "bounds in --json show how much they could change the shares."
)


def outcome_title(scores: Sequence[OutcomeScore]) -> str:
    """Return the title of an outcome table, with the setting and grader that all rows share."""
    return _title("Outcomes by k", scores)


def outcome_table(scores: Sequence[OutcomeScore]) -> str:
    """Format a row for each student, kind of topics and outcome, with a column for each k, as Markdown."""
    header, rows = _outcome_rows(scores)
    return panels(header, rows, names=len(_varying(scores)) + 2, right=frozenset({len(header) - 1}))


def outcome_table_html(scores: Sequence[OutcomeScore]) -> str:
    """Format the table of outcomes as HTML."""
    header, rows = _outcome_rows(scores)
    return html_table(header, rows, right=frozenset({len(header) - 1}))


def _outcome_rows(scores: Sequence[OutcomeScore]) -> tuple[list[str], list[list[str]]]:
    ordered = sorted(scores, key=lambda s: (s.setting, s.grader))
    header, rows = _by_k(ordered, [*_varying(scores), "topics", "outcome"])
    lines = []
    for line, found in rows:
        own = [score for score in found if isinstance(score, OutcomeScore)]
        lines.append([*line, f"{whole(sum(s.undecided for s in own))}/{whole(sum(s.texts for s in own))}"])
    return [*header, UNDECIDED], lines


def outcome_change_note(changes: Sequence[OutcomeChange]) -> str | None:
    """Return a line for each pair of students, setting, grader, kind of topics and outcome; None without lines."""
    if not changes:
        return None
    groups: dict[tuple[str, ...], list[OutcomeChange]] = {}
    for change in changes:
        names = (change.student, change.base, change.grader, change.setting, change.topics, change.outcome)
        groups.setdefault(names, []).append(change)
    outcomes: list[str] = list(OUTCOMES)
    lines = [_CHANGES]
    for key in sorted(groups, key=lambda key: (*key[:4], key[4] != "probes", outcomes.index(key[5]))):
        student, base, *place = key
        numbers = [
            f"k = {c.k} {signed_with_interval(c.difference, c.low, c.high)}, p {p_value(c.p_corrected)}"
            for c in groups[key]
        ]
        lines.append(f"{student} against {base}, {', '.join(place)}: {'; '.join(numbers)}.")
    return "\n".join(lines)


_CHANGES: Final = (
    "Differences in shares on the combinations that both students have completed, with 95% intervals. p comes from a "
    "permutation test within combinations, with Holm's correction over the settings, graders and k of the two students."
)
