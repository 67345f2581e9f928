"""Tables of grader cards: each grader against the truth, its bias, its steadiness and cost, and corrected scores."""

from collections.abc import Iterable, Iterator

from skillmix.calls import HUMAN
from skillmix.report.records import Report
from skillmix.report.registry import table
from skillmix.report.tables.table import LONG, Count, Entry, Estimate, ReportTable
from skillmix.scores.grader_card.card import GraderCard, TruthAgreement
from skillmix.scores.statistics.against_truth import Measure

_TRUTH_NOTE = (
    "The truth is what a grader is compared with: the majority of people if there are any, else code, else another "
    "grader. It errs as well. Intervals are of 95 %, with combinations as clusters; criteria that code decides under "
    "every grader (length, named skills) are left out."
)


@table(section="graders", order=70)
def card_table(report: Report) -> ReportTable | None:
    """Each grader against the truth, by kind of criterion."""
    rows = [row for card in report.cards for row in _agreement_rows(report, card, card.by_kind)]
    if not rows:
        return None
    return ReportTable(
        name="grader-cards",
        title="Graders against the truth",
        note="Sensitivity: how often the grader gives a point that the truth gives. Specificity: how often it denies a "
        f"point that the truth denies. {_TRUTH_NOTE} Full marks: texts that code does not deny them.",
        columns=("grader", "truth", "criterion", *_MEASURES),
        rows=tuple(rows),
    )


@table(section="graders", order=80)
def skill_card_table(report: Report) -> ReportTable | None:
    """Each grader against the truth, by skill."""
    rows = [row for card in report.cards for row in _agreement_rows(report, card, card.by_skill)]
    if not rows:
        return None
    return ReportTable(
        name="grader-cards-by-skill",
        title="Graders against the truth, by skill",
        note=f"As the table above, for each skill. {_TRUTH_NOTE}",
        columns=("grader", "truth", "skill", *_MEASURES),
        rows=tuple(rows),
        is_detail=True,
    )


_MEASURES = ("decided by both", "agreement", "sensitivity", "specificity", "kappa", "alpha", "truth gives")


def _agreement_rows(report: Report, card: GraderCard, rows: Iterable[TruthAgreement]) -> Iterator[tuple[Entry, ...]]:
    for row in rows:
        measures = (row.agreement, row.sensitivity, row.specificity, row.kappa, row.alpha, row.earned)
        yield (_grader(report, card), _truth(card), row.criterion, Count(row.units), *map(_entry, measures))


@table(section="graders", order=90)
def bias_table(report: Report) -> ReportTable | None:
    """Where each grader gives more or fewer points than the truth."""
    rows: list[tuple[Entry, ...]] = []
    for card in report.cards:
        first = (_grader(report, card), _truth(card))
        for row in card.bias.rows:
            excess = _entry(row.excess, is_signed=True)
            rows.append((*first, row.by, row.group, Count(row.units), excess, _entry(row.agreement)))
        if card.bias.favours_own_family.value is not None:
            difference = _entry(card.bias.favours_own_family, is_signed=True)
            rows.append((*first, "family", "own minus others", Count(None), difference, Estimate(None)))
    if not rows:
        return None
    return ReportTable(
        name="grader-bias",
        title="Where graders give more or fewer points than the truth",
        note="Skills, topic and sense together: the share of points that the grader gives, minus the share that the "
        "truth gives. By student, by the family of the student's model (the first word of its name, if the grader's "
        "family is among them), by thirds of the texts' lengths, by the position of the skill in the prompt, and by "
        "round.",
        columns=("grader", "truth", "by", "group", "decided by both", "grader minus truth", "agreement"),
        rows=tuple(rows),
        is_detail=len(rows) > LONG,
    )


@table(section="graders", order=100)
def corrected_table(report: Report) -> ReportTable | None:
    """Full marks as graders give them, and corrected for their errors."""
    rows: list[tuple[Entry, ...]] = [
        (
            _grader(report, card),
            _truth(card),
            report.label(score.run, score.student),
            score.setting,
            str(score.k),
            Count(score.texts),
            Count(score.labelled),
            _entry(score.raw),
            _entry(score.corrected),
            score.method if score.problem is None and score.method else f"cannot be corrected: {score.problem}",
        )
        for card in report.cards
        for score in card.corrected
    ]
    if not rows:
        return None
    return ReportTable(
        name="corrected-scores",
        title="Full marks, corrected for the errors of the grader",
        note="Single texts, one try. By truth: every text has a label. By own labels: the share given times the share "
        "of these that is right, plus the share denied times the share of these that is wrong, from labels of the same "
        "texts. By criteria: from the error rates of each kind of criterion on labelled texts of the same k. By error "
        "rates: from those of full marks, which hold only for students of about the same skill. The intervals carry "
        "the uncertainty of the labels and of the scored texts.",
        columns=("grader", "truth", "student", "setting", "k", "texts", "labels", "raw", "corrected", "by"),
        rows=tuple(rows),
        is_detail=len(rows) > LONG,
    )


@table(section="graders", order=110)
def steadiness_table(report: Report) -> ReportTable | None:
    """How steady each grader is, and its cost."""
    rows: list[tuple[Entry, ...]] = [
        (
            _grader(report, card),
            card.facts.model or "unknown",
            Count(card.texts),
            Count(card.labelled),
            Count(card.stability.pairs),
            _entry(card.stability.flips),
            Count(card.stability.rounds),
            _entry(card.stability.unreadable),
            _cost(card.facts.cost_per_text),
        )
        for card in report.cards
        if card.truth is not None
    ]
    if not rows:
        return None
    return ReportTable(
        name="grader-steadiness",
        title="Steadiness and cost of graders",
        note="Flips: the share of pairs of rounds on the same criterion that differ. Unreadable: the share of rounds "
        "without a readable reply after all attempts. Cost of a text: all calls of the grader by the texts that they "
        "are about.",
        columns=(
            "grader",
            "model",
            "texts",
            "texts with a label",
            "pairs of rounds",
            "flips",
            "rounds",
            "unreadable",
            "US dollars a text",
        ),
        rows=tuple(rows),
    )


def _grader(report: Report, card: GraderCard) -> str:
    return card.grader if len(report.runs) == 1 else f"{', '.join(card.runs)}: {card.grader}"


def _truth(card: GraderCard) -> str:
    names = ", ".join(rater.removeprefix(HUMAN) for rater in card.simulated)
    return f"{card.truth or '–'} (simulated: {names})" if card.simulated else card.truth or "–"


def _entry(measure: Measure, *, is_signed: bool = False) -> Estimate:
    return Estimate(measure.value, measure.low, measure.high, is_signed=is_signed)


def _cost(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"
