"""Tables of findings, graders, criteria and grader cards."""

from collections.abc import Iterable, Iterator
from typing import Final

from skillmix.calls import HUMAN
from skillmix.models.lineage import short_name
from skillmix.report.records import Report
from skillmix.report.registry import CORRECTION, LONG, Count, Entry, Estimate, PValue, ReportTable, estimate, table
from skillmix.scores.cells import Cell
from skillmix.scores.graders import GraderCard, TruthAgreement
from skillmix.scores.skills import REASONS, cell_independence, criterion_rates, independence_test, losses
from skillmix.scores.statistics.against_truth import Measure


@table(section="findings", order=10)
def finding_table(report: Report) -> ReportTable | None:
    """The differences behind the findings."""
    rows: list[tuple[Entry, ...]] = []
    for f in report.claims:
        for c in f.compared:
            rows.append(
                (
                    f.claim,
                    f"{f.second} − {f.first}",
                    f"{short_name(f.pair.second.k)} − {short_name(f.pair.first.k)}",
                    f.grader,
                    f.setting,
                    str(c.k),
                    estimate(c.gain.mean, (c.gain.low, c.gain.high), is_signed=True),
                    PValue(c.gain.p),
                    PValue(c.p_corrected),
                    c.verdict,
                    Count(c.gain.combinations),
                    Count(c.gain.seeds),
                    Count(c.gain.partitions),
                )
            )
    if not rows:
        return None
    return ReportTable(
        name="findings",
        title="Paired differences behind the findings",
        note="Full marks, best of the generations, on the combinations that both students have complete. One training "
        "run: bootstrap interval and permutation test over combinations. Several seeds: t interval and test with "
        "seeds and combinations as random factors. Several partitions: the same if they share combinations, and else a "
        "t interval and test over their means. Too few: two seeds, two partitions or fewer than 10 "
        "combinations have no interval. Combinations that seeds or partitions share count once. "
        f"{CORRECTION} A row has one p-value, whatever claims it belongs to.",
        columns=(
            "claim",
            "students",
            "trained on",
            "grader",
            "setting",
            "k",
            "difference",
            "p",
            "p, corrected",
            "verdict",
            "combinations",
            "runs",
            "partitions",
        ),
        rows=tuple(rows),
        is_detail=True,
    )


def _by_student_grader_and_k(report: Report) -> Iterator[tuple[tuple[str, str, str], list[Cell]]]:
    """The first three columns of a row, and the cells of all settings behind it."""
    for key in report.students:
        cells = report.cells_of(key)
        for grader in dict.fromkeys(c.key.grader for c in cells):
            for k in sorted({c.key.k for c in cells}):
                own = [c for c in cells if c.key.grader == grader and c.key.k == k]
                yield (report.label(*key), grader, str(k)), own


@table(section="graders", order=20)
def loss_table(report: Report) -> ReportTable:
    """Why texts missed full marks."""
    rows: list[tuple[Entry, ...]] = []
    for first, cells in _by_student_grader_and_k(report):
        counts = losses(cells)
        reasons = (Count(counts.reasons[reason]) for reason in REASONS)
        rows.append((*first, Count(counts.texts), Count(counts.full_marks), *reasons, Count(counts.missing)))
    return ReportTable(
        name="why-full-marks-were-missed",
        title="Why full marks were missed",
        note="Texts of all settings; a text counts in every setting that draws it. Format: no 'Answer:' marker, or an "
        "empty answer, whatever else is wrong. In its thought: the reply ends before its thought does, mostly because "
        "max_tokens cut it. Skills: only skills are missing. Others: only topic, sense or length. "
        "Undecided: no point is denied, but too few votes could be read. Not there: not written or not graded.",
        columns=(
            "student",
            "grader",
            "k",
            "texts",
            "full marks",
            "format",
            "in its thought",
            "refused",
            "skills",
            "others",
            "both",
            "undecided",
            "not there",
        ),
        rows=tuple(rows),
    )


@table(section="graders", order=10)
def criteria_table(report: Report) -> ReportTable:
    """How often each kind of point is earned."""
    rows: list[tuple[Entry, ...]] = []
    for first, cells in _by_student_grader_and_k(report):
        rates = criterion_rates(cells)
        estimates = map(Estimate, (rates.skill, rates.topic, rates.sense, rates.length))
        rows.append((*first, Count(rates.texts), *estimates))
    return ReportTable(
        name="points-by-criterion",
        title="Points by criterion",
        note="One try, over all settings: the share of decided points that are earned, for skills that were asked for "
        "and for the other three criteria.",
        columns=("student", "grader", "k", "texts", "a skill", "topic", "sense", "length"),
        rows=tuple(rows),
        is_detail=len(rows) > LONG,
    )


@table(section="graders", order=25)
def followed_example_table(report: Report) -> ReportTable | None:
    """How many texts follow an example of the prompts."""
    rows: list[tuple[Entry, ...]] = [
        (
            report.label(f.key.run, f.key.student),
            f.key.grader,
            f.key.setting,
            str(f.key.k),
            Count(f.texts),
            Count(f.following),
            Estimate(f.following / f.texts if f.texts else None),
            Count(f.full_marks),
            Count(f.full_marks_following),
        )
        for f in report.followed
    ]
    if not rows:
        return None
    return ReportTable(
        name="texts-that-follow-an-example",
        title="Texts that follow an example",
        note="A text follows an example of the catalogue, or of the worked examples in the prompts, if it has half or "
        "more of the example's three-word runs.",
        columns=("student", "grader", "setting", "k", "texts", "follow", "share", "full marks", "full marks, follow"),
        rows=tuple(rows),
        is_detail=len(rows) > LONG,
    )


@table(section="skills", order=30)
def independence_table(report: Report) -> ReportTable:
    """Full marks as observed, and as expected if skills were independent."""
    pairs: list[tuple[Cell, Cell | None]] = []
    for key in report.students:
        cells = report.cells_of(key)
        alone = {(c.key.grader, c.key.setting): c for c in cells if c.key.k == 1}
        pairs += [(cell, alone.get((cell.key.grader, cell.key.setting))) for cell in cells]
    rows: list[tuple[Entry, ...]] = []
    for cell, single in pairs:
        test = independence_test(cell, single)
        result = cell_independence(cell, single)
        rows.append(
            (
                report.label(cell.key.run, cell.key.student),
                cell.key.grader,
                cell.key.setting,
                str(cell.key.k),
                Count(result.texts),
                estimate(result.observed, test.observed),
                estimate(result.expected_same_k, test.if_independent),
                "–" if test.p is None else PValue(test.p),
                estimate(result.expected_k1, test.k1),
                Count(result.without_k1_rate),
            )
        )
    return ReportTable(
        name="observed-and-independent",
        title="Full marks observed, and expected of independent skills",
        note="One try, fully decided texts. Expected: the product of each skill's own rate, times the rate of topic, "
        "sense and length together; rates from texts of the same k, or from k = 1. Observed: 95 % bootstrap interval "
        "over combinations. Expected, same k: the middle 95 % of 1,000 permutations that move the outcomes of each "
        "skill between the combinations that ask for it; p is the two-sided p-value of this permutation test, without "
        "a correction for the number of rows. Expected, k = 1: 95 % bootstrap interval over the combinations of both "
        "k. The last column counts texts left out because a skill has no rate at k = 1.",
        columns=(
            "student",
            "grader",
            "setting",
            "k",
            "texts",
            "observed",
            "expected, same k",
            "p",
            "expected, k = 1",
            "without a rate",
        ),
        rows=tuple(rows),
        is_detail=True,
    )


@table(section="graders", order=30)
def rounds_table(report: Report) -> ReportTable | None:
    """Agreement between the rounds of each grader."""
    if not report.rounds:
        return None
    rows: list[tuple[Entry, ...]] = [
        (
            r.grader if len(report.runs) == 1 else f"{r.run}: {r.grader}",
            r.kind,
            r.decider,
            Count(r.units),
            Estimate(r.flips),
            Estimate(r.alpha),
        )
        for r in report.rounds
    ]
    return ReportTable(
        name="rounds",
        title="Agreement between the rounds of one grader",
        note="Flips: how often two rounds on the same criterion of the same text differ. Alpha is Krippendorff's; it "
        "is – where nothing varies. Skills that code decides stand apart and have no agreement: code gives every round "
        "the same point.",
        columns=("grader", "criterion", "decided by", "criteria of texts", "flips", "alpha"),
        rows=tuple(rows),
    )


@table(section="graders", order=40)
def agreement_table(report: Report) -> ReportTable | None:
    """Agreement between graders."""
    if not report.agreements:
        return None
    rows: list[tuple[Entry, ...]] = [
        (
            f"{a.first} and {a.second}" if len(report.runs) == 1 else f"{a.run}: {a.first} and {a.second}",
            a.kind,
            Count(a.units),
            Estimate(a.agree),
            Estimate(a.kappa),
            Estimate(a.alpha),
            Estimate(a.first_earned),
            Estimate(a.second_earned),
        )
        for a in report.agreements
    ]
    return ReportTable(
        name="graders-agreement",
        title="Agreement between graders",
        note="Points that both graders decided, on the same texts, each counted once; the cards of model and code "
        "graders weight a sample of labels to all graded texts. Kappa is Cohen's, alpha Krippendorff's; the last "
        "two columns are the shares of points that each grader gives.",
        columns=("graders", "criterion", "criteria of texts", "agree", "kappa", "alpha", "first gives", "second gives"),
        rows=tuple(rows),
    )


_LONGEST_LIST: Final = 25
"""Criteria of each run in the table of disagreements."""


@table(section="graders", order=50)
def disagreement_table(report: Report) -> ReportTable | None:
    """The criteria that graders disagree on."""
    rows: list[tuple[Entry, ...]] = [
        (
            d.criterion if len(report.runs) == 1 else f"{run}: {d.criterion}",
            Count(d.units),
            Count(d.differ),
            Estimate(d.differ / d.units),
        )
        for run, worst in report.disagreements.items()
        for d in worst[:_LONGEST_LIST]
        if d.differ
    ]
    if not rows:
        return None
    return ReportTable(
        name="graders-disagree-on",
        title="Criteria that graders disagree on",
        note=f"At most the worst {_LONGEST_LIST} of each run, over all pairs of graders.",
        columns=("criterion", "texts", "decided differently", "share"),
        rows=tuple(rows),
        is_detail=True,
    )


@table(section="graders", order=60)
def readability_table(report: Report) -> ReportTable | None:
    """Replies that could not be read."""
    if not report.readability:
        return None
    rows: list[tuple[Entry, ...]] = []
    for r in report.readability:
        reasons = "; ".join(f"{count} × {reason}" for reason, count in list(r.reasons.items())[:5])
        answered = r.calls - r.without_reply
        rows.append(
            (
                r.grader if len(report.runs) == 1 else f"{r.run}: {r.grader}",
                Count(r.calls),
                Count(r.without_reply),
                Count(r.unreadable),
                Estimate(r.unreadable / answered if answered else None),
                reasons or "–",
            )
        )
    return ReportTable(
        name="unreadable",
        title="Grading calls, and replies that could not be read",
        note="Every attempt counts; the experiment says how often a grader is asked again after an unreadable reply. "
        "Graders that are code make no calls.",
        columns=("grader", "calls", "without a reply", "unreadable", "share of replies", "reasons"),
        rows=tuple(rows),
    )


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
            ("unknown" if card.facts.cost_per_text is None else f"{card.facts.cost_per_text:.4f}"),
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
