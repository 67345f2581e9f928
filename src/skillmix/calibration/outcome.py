"""Calibrate a grader: ask it about texts with known labels, and make its card."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from skillmix import __version__
from skillmix.calibration.asking import ask
from skillmix.calibration.measuring import CRITERIA, LABELS, Measured, MeasuredText, WrongPoint, measured
from skillmix.calibration.planning import CalibrationPlan
from skillmix.render import (
    dollars,
    in_percent,
    markdown_table,
    middle_cut,
    plural,
    share,
    share_with_interval,
    whole,
    wrapped,
)
from skillmix.runs.run import Run
from skillmix.runs.scheduler import CallCounts
from skillmix.scores.cards import cards_as_json
from skillmix.scores.grader_card import GraderCard, GraderFacts, TruthAgreement, grader_card
from skillmix.scores.statistics.against_truth import Measure

_WORST: Final = 10
"""Skills that the terminal shows; the page has all of them."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The outcome of a calibration: the card of the grader, and what it is based on."""

    plan: CalibrationPlan
    run: Run
    counts: CallCounts
    """The calls that this invocation made."""
    measured: Measured
    card: GraderCard
    without_disputed: GraderCard | None
    """The card without disputed texts; None if no text of the set is disputed."""

    def __str__(self) -> str:
        return card_lines(self)

    @property
    def wrong(self) -> list[WrongPoint]:
        """Points that the grader decided otherwise than the labels."""
        return [wrong for text in self.measured.texts for wrong in text.wrong]

    @property
    def undecided(self) -> dict[str, int]:
        """By criterion, labelled points that the grader left open: too many of its votes are missing or unreadable."""
        return {
            criterion: sum(
                text.known.labels[index] is not None and text.points[index] is None for text in self.measured.texts
            )
            for index, criterion in enumerate(CRITERIA)
        }

    @property
    def disputed(self) -> int:
        """Texts whose label a second reader disputes."""
        return sum(text.known.is_disputed for text in self.measured.texts)

    @property
    def is_complete(self) -> bool:
        """Whether every labelled point is decided and no call is missing."""
        return not self.counts.failed and self.counts.stopped is None and not any(self.undecided.values())

    @property
    def folder(self) -> Path:
        """The folder of the card's files."""
        return self.run.path / "cards" / self.plan.grader

    def as_json(self) -> dict[str, object]:
        """The documented form of `calibrate --json`, and of card.json."""
        plan, settings = self.plan, self.plan.settings
        return {
            "skillmix": __version__,
            "grader": settings.model,
            "rounds": settings.votes,
            "prompts": plan.prompts.name,
            "variant": settings.prompts if settings.asked else None,
            "temperature": settings.temperature if settings.asked else None,
            "max_tokens": settings.max_tokens if settings.asked else None,
            "catalog": plan.catalog.name,
            "set": plan.known.name,
            "set_hash": plan.known.content_hash(),
            "texts": len(self.measured.texts),
            "texts_in_set": plan.whole_size,
            "disputed": self.disputed,
            "undecided": self.undecided,
            "calls": asdict(self.measured.facts),
            "card": cards_as_json([self.card])[0],
            "card_without_disputed": next(iter(cards_as_json(filter(None, [self.without_disputed]))), None),
            "wrong": [_wrong_json(wrong) for wrong in self.wrong],
        }


def calibrated(plan: CalibrationPlan, *, prices: Path | None = None) -> Calibration:
    """Make the missing calls of a calibration, and the grader's card from all of its votes."""
    asked = ask(plan, prices=prices)
    found = measured(plan, asked.run)
    undisputed = [text for text in found.texts if not text.known.is_disputed]
    has_disputed = len(undisputed) < len(found.texts)
    return Calibration(
        plan=plan,
        run=asked.run,
        counts=asked.counts,
        measured=found,
        card=_card(plan, asked.run, found, found.texts),
        without_disputed=_card(plan, asked.run, found, undisputed) if has_disputed else None,
    )


def _card(plan: CalibrationPlan, run: Run, found: Measured, texts: Sequence[MeasuredText]) -> GraderCard:
    items = [text.as_item(run.name, plan.grader) for text in texts]
    facts = GraderFacts(plan.settings.model, found.facts.cost_usd, len(texts))
    card = grader_card(items, plan.grader, LABELS, facts)
    if all(None not in text.known.labels for text in texts):
        return card
    # Where a label is missing, only denied full marks are known, so their rates would be wrong.
    return replace(card, by_kind=tuple(row for row in card.by_kind if row.criterion in CRITERIA))


def _wrong_json(wrong: WrongPoint) -> dict[str, object]:
    known = wrong.known
    return {
        "skill": known.skill,
        "topic": known.topic,
        "text": known.text,
        "criterion": wrong.criterion,
        "label": int(wrong.label),
        "disputed": known.is_disputed,
        "why": known.why,
        "words": wrong.words,
    }


def headline(calibration: Calibration) -> str:
    """The result in a sentence: how often the grader gives the point for the skill, rightly and wrongly."""
    skill = next((row for row in calibration.card.by_kind if row.criterion == "skill"), None)
    found = _points_given(skill.sensitivity.value, "texts that show the skill") if skill else []
    missed = skill.specificity.value if skill else None
    found += _points_given(None if missed is None else 1 - missed, "texts that do not")
    name = calibration.plan.settings.model
    if not found:
        return f"{name} decided no labelled point."
    return f"{name} gives the point for the skill to {' and to '.join(found)}."


def _points_given(value: float | None, texts: str) -> list[str]:
    return [] if value is None else [f"{in_percent(value)} % of the {texts}"]


CRITERION_HEADER: Final = ("criterion", "points", "agreement", "sensitivity", "specificity", "kappa")
SKILL_HEADER: Final = ("skill", "points", "agreement", "sensitivity", "specificity")


def criterion_rows(card: GraderCard) -> list[list[str]]:
    """The rows of the table by criterion."""
    return [[*_row(row), _measure(row.kappa)] for row in card.by_kind]


def skill_rows(card: GraderCard) -> list[list[str]]:
    """The rows of the table by skill, the lowest agreement first."""
    return [_row(row) for row in sorted(card.by_skill, key=_agreement)]


def _agreement(row: TruthAgreement) -> tuple[float, str]:
    return (1.0 if row.agreement.value is None else row.agreement.value), row.criterion


def _row(row: TruthAgreement) -> list[str]:
    measures = (row.agreement, row.sensitivity, row.specificity)
    return [row.criterion, whole(row.units), *map(_measure, measures)]


def _measure(measure: Measure) -> str:
    return share_with_interval(measure.value, measure.low, measure.high)


def fact_rows(calibration: Calibration) -> list[tuple[str, str]]:
    """What the card is based on, as pairs of name and value."""
    plan, settings, facts = calibration.plan, calibration.plan.settings, calibration.measured.facts
    texts = len(calibration.measured.texts)
    part = "all of the set" if texts == plan.whole_size else f"of {whole(plan.whole_size)} in the set, chosen by hash"
    rows = [
        ("set", f"{plan.known.name}, {plural(texts, 'text')} ({part})"),
        ("disputed texts", whole(calibration.disputed)),
        ("catalogue", plan.catalog.name),
    ]
    if settings.asked is None:
        return [*rows, ("grader", "code; it votes once and costs nothing")]
    per_text = None if facts.cost_usd is None or not texts else facts.cost_usd / texts
    return [
        *rows,
        ("prompt", f"{plan.prompts.name}, grade-{settings.prompts}.txt"),
        ("rounds", whole(settings.votes)),
        ("sampling", f"temperature {settings.temperature:g}, at most {whole(settings.max_tokens)} tokens"),
        ("calls", whole(facts.calls)),
        ("unreadable replies", _of(facts.unreadable, facts.calls)),
        ("calls without a reply", _of(facts.without_reply, facts.calls)),
        ("flips between rounds", _measure(calibration.card.stability.flips)),
        ("US dollars", dollars(facts.cost_usd)),
        ("US dollars a text", "unknown" if per_text is None else f"{per_text:.4f}"),
    ]


def _of(count: int, total: int) -> str:
    return f"{whole(count)} ({share(count / total)})" if total else whole(count)


def undecided_line(calibration: Calibration) -> str:
    """How many labelled points have no decision, in a sentence; empty if all have one."""
    open_points = {name: count for name, count in calibration.undecided.items() if count}
    if not open_points:
        return ""
    parts = ", ".join(f"{whole(count)} of {name}" for name, count in open_points.items())
    return f"Points without a decision, as too many votes are missing or unreadable: {parts}. They are in no rate."


def card_lines(calibration: Calibration) -> str:
    """The card for a terminal: rates by criterion, the skills with the lowest agreement, and what it is based on."""
    parts = [wrapped(headline(calibration)), *_table("", CRITERION_HEADER, criterion_rows(calibration.card))]
    if calibration.without_disputed:
        title = f"Without {plural(calibration.disputed, 'disputed text')}:\n\n"
        parts += _table(title, CRITERION_HEADER, criterion_rows(calibration.without_disputed))
    skills = [[middle_cut(row[0]), *row[1:]] for row in skill_rows(calibration.card)]
    title = "Skills with the lowest agreement:\n\n" if len(skills) > _WORST else "By skill:\n\n"
    parts += _table(title, SKILL_HEADER, skills[:_WORST])
    parts.append("\n".join(f"{name}: {value}" for name, value in fact_rows(calibration)))
    return "\n\n".join(filter(None, [*parts, wrapped(undecided_line(calibration))]))


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table under its title; nothing if it has no rows."""
    return [f"{title}{markdown_table(header, rows, right=frozenset({1}))}"] if rows else []
