"""Grader cards in words and tables, for a terminal, and in the form of JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Final

from skillmix.calls import PEOPLE
from skillmix.render.layout import panels, wrapped
from skillmix.render.markdown import markdown_table
from skillmix.render.numbers import TOO_FEW, share, share_with_interval, signed, signed_with_interval, whole
from skillmix.render.wording import plural
from skillmix.scores.grader_card.card import GraderCard, TruthAgreement
from skillmix.scores.statistics.against_truth import Measure

NOTE: Final = (
    "Sensitivity: how often the grader gives a point that the truth gives; specificity: how often it denies one that "
    "the truth denies. The truth is what a grader is compared with, and errs as well. Intervals are of 95 %; criteria "
    "of one combination count as one cluster. Criteria that code decides (length, named skills) are left out."
)
CORRECTED_NOTE: Final = (
    "Full marks of single texts, one try. Corrected by the truth: every text has a label. By own labels: the labels of "
    "a sample of these texts. By criteria: error rates of each kind of criterion on labelled texts of the same k. By "
    "error rates: those of full marks, which hold only for students of about the same skill."
)


def card_text(card: GraderCard, *, wide: bool = False) -> str:
    """A card for a terminal of 100 columns; `wide` adds alpha and a table by skill."""
    parts = [wrapped(card_title(card), indent=2), wrapped(_facts(card), indent=2)]
    if card.by_kind:
        parts.append(_agreement_table("criterion", card.by_kind, wide=wide))
    if card.by_skill and wide:
        parts.append(_agreement_table("skill", card.by_skill, wide=wide))
    if card.bias.rows:
        parts += [_bias_table(card), wrapped(family_sentence(card), indent=2)]
    if card.corrected:
        parts.append(_corrected_table(card))
    return "\n\n".join(part for part in parts if part)


def card_title(card: GraderCard) -> str:
    """The grader, the truth, and how many texts have a label."""
    runs = f" ({', '.join(card.runs)})" if len(card.runs) > 1 else ""
    if card.truth is None:
        return f"{card.grader}{runs}: nobody else graded its {plural(card.texts, 'text')}, so there is no truth"
    return (
        f"{card.grader}{runs} against {truth_in_words(card.truth)}: {whole(card.labelled)} of "
        f"{plural(card.texts, 'text')} {'has' if card.labelled == 1 else 'have'} a label{simulated_in_words(card)}"
    )


def simulated_in_words(card: GraderCard) -> str:
    """Which raters of a card are simulated, to follow a heading; empty if all are people."""
    return f"; simulated, no people: {', '.join(card.simulated)}" if card.simulated else ""


def truth_in_words(truth: str) -> str:
    """The name of the truth, for a heading.

    >>> truth_in_words("people"), truth_in_words("rules")
    ('the majority of people', 'rules')
    """
    return "the majority of people" if truth == PEOPLE else truth


def _facts(card: GraderCard) -> str:
    stability, facts = card.stability, card.facts
    cost = facts.cost_per_text
    parts = [f"model: {facts.model or 'unknown'}"]
    if stability.pairs:
        parts.append(
            f"flips between rounds: {_interval(stability.flips)} of {plural(stability.pairs, 'pair')} of votes"
        )
    if stability.rounds:
        parts.append(f"unreadable: {_interval(stability.unreadable)} of {plural(stability.rounds, 'round')}")
    parts.append(f"cost of a text: {'unknown' if cost is None else f'{cost:.4f} US dollars'}")
    return "; ".join(parts)


def family_sentence(card: GraderCard) -> str:
    """Whether the grader favours students of its own family; empty if that is unknown."""
    difference = card.bias.favours_own_family
    if difference.value is None or difference.low is None or difference.high is None:
        return ""
    within = difference.low <= 0 <= difference.high
    verdict = "within noise" if within else ("it favours them" if difference.value > 0 else "it is harder on them")
    return f"Students of its own family against others: {_signed(difference)}, {verdict}."


def _agreement_table(name: str, rows: Sequence[TruthAgreement], *, wide: bool) -> str:
    header = [
        name,
        "n",
        "agreement",
        "sensitivity",
        "specificity",
        "kappa",
        *(["alpha", "truth gives"] if wide else []),
    ]
    lines = []
    for row in rows:
        measures = [row.agreement, row.sensitivity, row.specificity, row.kappa]
        measures += [row.alpha, row.earned] if wide else []
        lines.append([row.criterion, whole(row.units), *map(_interval, measures)])
    return panels(header, lines, names=2, right=frozenset({1}))


def _bias_table(card: GraderCard) -> str:
    rows = [
        [row.by, row.group, whole(row.units), _signed(row.excess), _interval(row.agreement)] for row in card.bias.rows
    ]
    return markdown_table(["by", "group", "n", "grader − truth", "agreement"], rows, right=frozenset({2}))


def _corrected_table(card: GraderCard) -> str:
    several = len({score.run for score in card.corrected}) > 1
    header = [*(["run"] if several else []), "student", "setting", "k", "texts", "labels", "raw", "corrected", "by"]
    rows = []
    for score in card.corrected:
        first = [*([score.run] if several else []), score.student, score.setting, str(score.k)]
        last = "cannot be corrected" if score.problem else str(score.method)
        counts = [whole(score.texts), whole(score.labelled)]
        rows.append([*first, *counts, _interval(score.raw), _interval(score.corrected), last])
    problems = dict.fromkeys(score.problem for score in card.corrected if score.problem)
    why = [wrapped(f"Cannot be corrected: {problem}.", indent=2) for problem in problems]
    start = 4 if several else 3
    table = panels(header, rows, names=start, right=frozenset({start - 1, start, start + 1}))
    return "\n".join([table, *(["", *why] if why else [])])


def _interval(measure: Measure) -> str:
    return _bare(share(measure.value), share_with_interval(*measure))


def _signed(measure: Measure) -> str:
    return _bare(signed(measure.value), signed_with_interval(*measure))


def _bare(value: str, with_interval: str) -> str:
    """Without the remark on too few combinations, which means something else than an unknown interval here."""
    return value if with_interval.endswith(TOO_FEW) else with_interval


def short_table(cards: Iterable[GraderCard]) -> str:
    """One row for each grader and criterion: agreement, sensitivity and specificity."""
    header = ["grader", "criterion", "n", "agreement", "sensitivity", "specificity"]
    rows = [
        [
            card.grader,
            row.criterion,
            whole(row.units),
            *map(_interval, (row.agreement, row.sensitivity, row.specificity)),
        ]
        for card in cards
        for row in card.by_kind
    ]
    return markdown_table(header, rows, right=frozenset({2}))


def cards_as_json(cards: Iterable[GraderCard]) -> list[object]:
    """Cards as `--json` prints them: every measure is an object with value, low and high."""
    return [_plain(card) for card in cards]


def _plain(value: object) -> object:
    if isinstance(value, Measure):
        return value._asdict()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value
