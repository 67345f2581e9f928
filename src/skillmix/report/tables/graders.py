"""Tables of findings, graders, criteria and grader cards."""

from collections.abc import Iterator
from typing import Final

from skillmix.calls import HUMAN
from skillmix.models.lineage import short_name
from skillmix.report.records import Report
from skillmix.report.registry import (
    CORRECTION,
    Count,
    Estimate,
    ReportTable,
    Row,
    cell_heads,
    estimate,
    p_entry,
    table,
    table_of,
)
from skillmix.scores.cells import Cell
from skillmix.scores.graders import GraderCard, TruthAgreement
from skillmix.scores.skills import REASONS, cell_independence, criterion_rates, independence_test, losses
from skillmix.scores.statistics.against_truth import Measure


@table(section="findings", order=10)
def finding_table(report: Report) -> ReportTable | None:
    """The differences behind the findings."""
    return table_of(
        "findings",
        "Paired differences behind the findings",
        "Full marks, best of the generations, on the combinations that both students have complete. One training "
        "run: bootstrap interval and permutation test over combinations. Several seeds: t interval and test with "
        "seeds and combinations as random factors. Several partitions: the same if they share combinations, and else a "
        "t interval and test over their means. Too few: two seeds, two partitions or fewer than 10 "
        "combinations have no interval. Combinations that seeds or partitions share count once. "
        f"{CORRECTION} A row has one p-value, whatever claims it belongs to.",
        (
            {
                "claim": f.claim,
                "students": f"{f.second} − {f.first}",
                "trained on": f"{short_name(f.pair.second.k)} − {short_name(f.pair.first.k)}",
                "grader": f.grader,
                "setting": f.setting,
                "k": str(c.k),
                "difference": estimate(c.gain.mean, (c.gain.low, c.gain.high), is_signed=True),
                "p": p_entry(c.gain.p),
                "p, corrected": p_entry(c.p_corrected),
                "verdict": c.verdict,
                "combinations": Count(c.gain.combinations),
                "runs": Count(c.gain.seeds),
                "partitions": Count(c.gain.partitions),
            }
            for f in report.claims
            for c in f.compared
        ),
        folds="always",
    )


def _by_student_grader_and_k(report: Report) -> Iterator[tuple[Row, list[Cell]]]:
    """The first entries of a row, and the cells of all settings behind it."""
    for key in report.students:
        cells = report.cells_of(key)
        for grader in dict.fromkeys(c.key.grader for c in cells):
            for k in sorted({c.key.k for c in cells}):
                own = [c for c in cells if c.key.grader == grader and c.key.k == k]
                yield {"student": report.label(*key), "grader": grader, "k": str(k)}, own


@table(section="graders", order=20)
def loss_table(report: Report) -> ReportTable | None:
    """Why texts missed full marks."""
    counted = ((heads, losses(cells)) for heads, cells in _by_student_grader_and_k(report))
    names = ("format", "in its thought", "refused", "skills", "others", "both", "undecided")
    return table_of(
        "why-full-marks-were-missed",
        "Why full marks were missed",
        "Texts of all settings; a text counts in every setting that draws it. Format: no 'Answer:' marker, or an "
        "empty answer, whatever else is wrong. In its thought: the reply ends before its thought does, mostly because "
        "max_tokens cut it. Skills: only skills are missing. Others: only topic, sense or length. "
        "Undecided: no point is denied, but too few votes could be read. Not there: not written or not graded.",
        (
            {
                **heads,
                "texts": Count(counts.texts),
                "full marks": Count(counts.full_marks),
                **{name: Count(counts.reasons[reason]) for name, reason in zip(names, REASONS, strict=True)},
                "not there": Count(counts.missing),
            }
            for heads, counts in counted
        ),
    )


@table(section="graders", order=10)
def criteria_table(report: Report) -> ReportTable | None:
    """How often each kind of point is earned."""
    counted = ((heads, criterion_rates(cells)) for heads, cells in _by_student_grader_and_k(report))
    return table_of(
        "points-by-criterion",
        "Points by criterion",
        "One try, over all settings: the share of decided points that are earned, for skills that were asked for "
        "and for the other three criteria.",
        (
            {
                **heads,
                "texts": Count(rates.texts),
                "a skill": Estimate(rates.skill),
                "topic": Estimate(rates.topic),
                "sense": Estimate(rates.sense),
                "length": Estimate(rates.length),
            }
            for heads, rates in counted
        ),
        folds="long",
    )


@table(section="graders", order=25)
def followed_example_table(report: Report) -> ReportTable | None:
    """How many texts follow an example of the prompts."""
    return table_of(
        "texts-that-follow-an-example",
        "Texts that follow an example",
        "A text follows an example of the catalog, or of the worked examples in the prompts, if it has half or "
        "more of the example's three-word runs.",
        (
            {
                **cell_heads(report, f.key),
                "texts": Count(f.texts),
                "follow": Count(f.following),
                "share": Estimate(f.following / f.texts if f.texts else None),
                "full marks": Count(f.full_marks),
                "full marks, follow": Count(f.full_marks_following),
            }
            for f in report.cell_texts
            if f.following is not None
        ),
        folds="long",
    )


@table(section="skills", order=30)
def independence_table(report: Report) -> ReportTable | None:
    """Full marks as observed, and as expected if skills were independent."""
    rows: list[Row] = []
    for key in report.students:
        cells = report.cells_of(key)
        alone = {(c.key.grader, c.key.setting): c for c in cells if c.key.k == 1}
        for cell in cells:
            single = alone.get((cell.key.grader, cell.key.setting))
            test, result = independence_test(cell, single), cell_independence(cell, single)
            rows.append(
                {
                    **cell_heads(report, cell.key),
                    "texts": Count(result.texts),
                    "observed": estimate(result.observed, test.observed),
                    "expected, same k": estimate(result.expected_same_k, test.if_independent),
                    "p": "–" if test.p is None else p_entry(test.p),
                    "expected, k = 1": estimate(result.expected_k1, test.k1),
                    "without a rate": Count(result.without_k1_rate),
                }
            )
    return table_of(
        "observed-and-independent",
        "Full marks observed, and expected of independent skills",
        "One try, fully decided texts. Expected: the product of each skill's own rate, times the rate of topic, "
        "sense and length together; rates from texts of the same k, or from k = 1. Observed: 95% bootstrap interval "
        "over combinations. Expected, same k: the middle 95% of 1,000 permutations that move the outcomes of each "
        "skill between the combinations that ask for it; p is the two-sided p-value of this permutation test, without "
        "a correction for the number of rows. Expected, k = 1: 95% bootstrap interval over the combinations of both "
        "k. The last column counts texts left out because a skill has no rate at k = 1.",
        rows,
        folds="always",
    )


def _of_run(report: Report, run: str, name: str) -> str:
    """A name, after its run where there are several."""
    return name if len(report.runs) == 1 else f"{run}: {name}"


@table(section="graders", order=30)
def rounds_table(report: Report) -> ReportTable | None:
    """Agreement between the rounds of each grader."""
    return table_of(
        "rounds",
        "Agreement between the rounds of one grader",
        "Flips: how often two rounds on the same criterion of the same text differ. Alpha is Krippendorff's; it "
        "is – where nothing varies. Skills that code decides stand apart and have no agreement: code gives every round "
        "the same point.",
        (
            {
                "grader": _of_run(report, r.run, r.grader),
                "criterion": r.kind,
                "decided by": r.decider,
                "criteria of texts": Count(r.units),
                "flips": Estimate(r.flips),
                "alpha": Estimate(r.alpha),
            }
            for r in report.rounds
        ),
    )


@table(section="graders", order=40)
def agreement_table(report: Report) -> ReportTable | None:
    """Agreement between graders."""
    return table_of(
        "graders-agreement",
        "Agreement between graders",
        "Points that both graders decided, on the same texts, each counted once; the cards of model and code "
        "graders weight a sample of labels to all graded texts. Kappa is Cohen's, alpha Krippendorff's; the last "
        "two columns are the shares of points that each grader gives.",
        (
            {
                "graders": _of_run(report, a.run, f"{a.first} and {a.second}"),
                "criterion": a.kind,
                "criteria of texts": Count(a.units),
                "agree": Estimate(a.agree),
                "kappa": Estimate(a.kappa),
                "alpha": Estimate(a.alpha),
                "first gives": Estimate(a.first_earned),
                "second gives": Estimate(a.second_earned),
            }
            for a in report.agreements
        ),
    )


_LONGEST_LIST: Final = 25
"""Criteria of each run in the table of disagreements."""


@table(section="graders", order=50)
def disagreement_table(report: Report) -> ReportTable | None:
    """The criteria that graders disagree on."""
    return table_of(
        "graders-disagree-on",
        "Criteria that graders disagree on",
        f"At most the worst {_LONGEST_LIST} of each run, over all pairs of graders.",
        (
            {
                "criterion": _of_run(report, run, d.criterion),
                "texts": Count(d.units),
                "decided differently": Count(d.differ),
                "share": Estimate(d.differ / d.units),
            }
            for run, worst in report.disagreements.items()
            for d in worst[:_LONGEST_LIST]
            if d.differ
        ),
        folds="always",
    )


@table(section="graders", order=60)
def readability_table(report: Report) -> ReportTable | None:
    """Replies that could not be read."""
    rows: list[Row] = []
    for r in report.readability:
        answered = r.calls - r.without_reply
        reasons = "; ".join(f"{count} × {reason}" for reason, count in list(r.reasons.items())[:5])
        rows.append(
            {
                "grader": _of_run(report, r.run, r.grader),
                "calls": Count(r.calls),
                "without a reply": Count(r.without_reply),
                "unreadable": Count(r.unreadable),
                "share of replies": Estimate(r.unreadable / answered if answered else None),
                "reasons": reasons or "–",
            }
        )
    return table_of(
        "unreadable",
        "Grading calls, and replies that could not be read",
        "Every attempt counts; the experiment says how often a grader is asked again after an unreadable reply. "
        "Graders that are code make no calls.",
        rows,
    )


_TRUTH_NOTE = (
    "The truth is what a grader is compared with: the majority of people if there are any, else code, else another "
    "grader. It errs as well. Intervals are of 95%, with combinations as clusters; criteria that code decides under "
    "every grader (length, named skills) are left out."
)


@table(section="graders", order=70)
def card_table(report: Report) -> ReportTable | None:
    """Each grader against the truth, by kind of criterion."""
    return table_of(
        "grader-cards",
        "Graders against the truth",
        "Sensitivity: how often the grader gives a point that the truth gives. Specificity: how often it denies a "
        f"point that the truth denies. {_TRUTH_NOTE} Full marks: texts that code does not deny them.",
        (_agreement_row(report, card, row, "criterion") for card in report.cards for row in card.by_kind),
    )


@table(section="graders", order=80)
def skill_card_table(report: Report) -> ReportTable | None:
    """Each grader against the truth, by skill."""
    return table_of(
        "grader-cards-by-skill",
        "Graders against the truth, by skill",
        f"As the table above, for each skill. {_TRUTH_NOTE}",
        (_agreement_row(report, card, row, "skill") for card in report.cards for row in card.by_skill),
        folds="always",
    )


def _agreement_row(report: Report, card: GraderCard, row: TruthAgreement, heading: str) -> Row:
    return {
        **_card_heads(report, card),
        heading: row.criterion,
        "decided by both": Count(row.units),
        "agreement": _entry(row.agreement),
        "sensitivity": _entry(row.sensitivity),
        "specificity": _entry(row.specificity),
        "kappa": _entry(row.kappa),
        "alpha": _entry(row.alpha),
        "truth gives": _entry(row.earned),
    }


def _card_heads(report: Report, card: GraderCard) -> Row:
    """The grader of a card, and what it is compared with."""
    truth = card.truth or "–"
    if card.simulated:
        truth += f" (simulated: {', '.join(rater.removeprefix(HUMAN) for rater in card.simulated)})"
    return {"grader": _of_run(report, ", ".join(card.runs), card.grader), "truth": truth}


def _entry(measure: Measure, *, is_signed: bool = False) -> Estimate:
    return Estimate(measure.value, measure.low, measure.high, is_signed=is_signed)


@table(section="graders", order=90)
def bias_table(report: Report) -> ReportTable | None:
    """Where each grader gives more or fewer points than the truth."""
    rows: list[Row] = []
    for card in report.cards:
        found: list[tuple[str, str, int | None, Measure, Estimate]] = []
        found += [(r.by, r.group, r.units, r.excess, _entry(r.agreement)) for r in card.bias.rows]
        own = card.bias.favours_own_family
        if own.value is not None:
            found.append(("family", "own minus others", None, own, Estimate(None)))
        for by, group, units, excess, agreement in found:
            rows.append(
                {
                    **_card_heads(report, card),
                    "by": by,
                    "group": group,
                    "decided by both": Count(units),
                    "grader minus truth": _entry(excess, is_signed=True),
                    "agreement": agreement,
                }
            )
    return table_of(
        "grader-bias",
        "Where graders give more or fewer points than the truth",
        "Skills, topic and sense together: the share of points that the grader gives, minus the share that the "
        "truth gives. By student, by the family of the student's model (the first word of its name, if the grader's "
        "family is among them), by thirds of the texts' lengths, by the position of the skill in the prompt, and by "
        "round.",
        rows,
        folds="long",
    )


@table(section="graders", order=100)
def corrected_table(report: Report) -> ReportTable | None:
    """Full marks as graders give them, and corrected for their errors."""
    return table_of(
        "corrected-scores",
        "Full marks, corrected for the errors of the grader",
        "Single texts, one try. By truth: every text has a label. By own labels: the share given times the share "
        "of these that is right, plus the share denied times the share of these that is wrong, from labels of the same "
        "texts. By criteria: from the error rates of each kind of criterion on labelled texts of the same k. By error "
        "rates: from those of full marks, which hold only for students of about the same skill. The intervals carry "
        "the uncertainty of the labels and of the scored texts.",
        (
            {
                **_card_heads(report, card),
                "student": report.label(score.run, score.student),
                "setting": score.setting,
                "k": str(score.k),
                "texts": Count(score.texts),
                "labels": Count(score.labelled),
                "raw": _entry(score.raw),
                "corrected": _entry(score.corrected),
                "by": score.method
                if score.problem is None and score.method
                else f"cannot be corrected: {score.problem}",
            }
            for card in report.cards
            for score in card.corrected
        ),
        folds="long",
    )


@table(section="graders", order=110)
def steadiness_table(report: Report) -> ReportTable | None:
    """How steady each grader is, and its cost."""
    return table_of(
        "grader-steadiness",
        "Steadiness and cost of graders",
        "Flips: the share of pairs of rounds on the same criterion that differ. Unreadable: the share of rounds "
        "without a readable reply after all attempts. Cost of a text: all calls of the grader by the texts that they "
        "are about.",
        (
            {
                "grader": _card_heads(report, card)["grader"],
                "model": card.facts.model or "unknown",
                "texts": Count(card.texts),
                "texts with a label": Count(card.labelled),
                "pairs of rounds": Count(card.stability.pairs),
                "flips": _entry(card.stability.flips),
                "rounds": Count(card.stability.rounds),
                "unreadable": _entry(card.stability.unreadable),
                "US dollars a text": "unknown"
                if card.facts.cost_per_text is None
                else f"{card.facts.cost_per_text:.4f}",
            }
            for card in report.cards
            if card.truth is not None
        ),
    )
