"""Tables about findings, graders, criteria and grader cards."""

from collections.abc import Iterator
from typing import Final

from skillmix.calls import HUMAN
from skillmix.models.lineage import short_name
from skillmix.report.records import Report
from skillmix.report.registry import Estimate, ReportTable, Row, cell_heads, count, estimate, p_entry, table_of
from skillmix.scores.cells import Cell
from skillmix.scores.graders import GraderCard, TruthAgreement
from skillmix.scores.skills import cell_independence, criterion_rates, independence_test, losses
from skillmix.scores.statistics.against_truth import Measure


def findings_table(report: Report) -> Iterator[Row]:
    """Make the table of the differences on which the findings are based."""
    for f in report.claims:
        for c in f.compared:
            yield {
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
                "combinations": count(c.gain.combinations),
                "runs": count(c.gain.seeds),
                "partitions": count(c.gain.partitions),
            }


def _by_student_grader_and_k(report: Report) -> Iterator[tuple[Row, list[Cell]]]:
    """Yield the identifying entries of each row, and the cells of all settings that the row summarizes."""
    for key in report.students:
        cells = report.cells_of(key)
        for grader in dict.fromkeys(c.key.grader for c in cells):
            for k in sorted({c.key.k for c in cells}):
                own = [c for c in cells if c.key.grader == grader and c.key.k == k]
                yield {"student": report.label(*key), "grader": grader, "k": str(k)}, own


def why_full_marks_were_missed_table(report: Report) -> Iterator[Row]:
    """Make the table of reasons for missed full marks."""
    for heads, cells in _by_student_grader_and_k(report):
        yield {**heads, **{name: count(number) for name, number in losses(cells).items()}}


def points_by_criterion_table(report: Report) -> Iterator[Row]:
    """Make the table that shows how often each kind of point is earned."""
    for heads, cells in _by_student_grader_and_k(report):
        texts, rates = criterion_rates(cells)
        shares = {"a skill" if kind == "skill" else kind: Estimate(rate) for kind, rate in rates.items()}
        yield {**heads, "texts": count(texts), **shares}


def texts_that_follow_an_example_table(report: Report) -> Iterator[Row]:
    """Make the table of near-copies of examples in the prompts."""
    for f in report.cell_texts:
        if f.following is not None:
            yield {
                **cell_heads(report, f.key),
                "texts": count(f.texts),
                "follow": count(f.following),
                "share": Estimate(f.following / f.texts if f.texts else None),
                "full marks": count(f.full_marks),
                "full marks, follow": count(f.full_marks_following),
            }


def observed_and_independent_table(report: Report) -> Iterator[Row]:
    """Make the table that compares observed full marks with those expected if skills were independent."""
    for key in report.students:
        cells = report.cells_of(key)
        alone = {(c.key.grader, c.key.setting): c for c in cells if c.key.k == 1}
        for cell in cells:
            single = alone.get((cell.key.grader, cell.key.setting))
            test, result = independence_test(cell, single), cell_independence(cell, single)
            yield {
                **cell_heads(report, cell.key),
                "texts": count(result.texts),
                "observed": estimate(result.observed, test.observed),
                "expected, same k": estimate(result.expected_same_k, test.if_independent),
                "p": "–" if test.p is None else p_entry(test.p),
                "expected, k = 1": estimate(result.expected_k1, test.k1),
                "without a rate": count(result.without_k1_rate),
            }


def rounds_table(report: Report) -> Iterator[Row]:
    """Make the table of agreement between the rounds of each grader."""
    for r in report.rounds:
        yield {
            "grader": report.label(r.run, r.grader),
            "criterion": r.kind,
            "decided by": r.decider,
            "criteria of texts": count(r.units),
            "flips": Estimate(r.flips),
            "alpha": Estimate(r.alpha),
        }


def graders_agreement_table(report: Report) -> Iterator[Row]:
    """Make the table of agreement between graders."""
    for a in report.agreements:
        yield {
            "graders": report.label(a.run, f"{a.first} and {a.second}"),
            "criterion": a.kind,
            "criteria of texts": count(a.units),
            "agree": Estimate(a.agree),
            "kappa": Estimate(a.kappa),
            "alpha": Estimate(a.alpha),
            "first gives": Estimate(a.first_earned),
            "second gives": Estimate(a.second_earned),
        }


_LONGEST_LIST: Final = 25
"""The maximum number of criteria from each run in the table of disagreements."""


def graders_disagree_on_table(report: Report) -> list[ReportTable]:
    """Make the table of criteria on which graders disagree."""
    rows: list[Row] = [
        {
            "criterion": report.label(run, d.criterion),
            "texts": count(d.units),
            "decided differently": count(d.differ),
            "share": Estimate(d.differ / d.units),
        }
        for run, worst in report.disagreements.items()
        for d in worst[:_LONGEST_LIST]
        if d.differ
    ]
    return table_of("graders-disagree-on", rows, most=_LONGEST_LIST)


def unreadable_table(report: Report) -> Iterator[Row]:
    """Make the table of replies that could not be parsed."""
    for r in report.readability:
        answered = r.calls - r.without_reply
        reasons = "; ".join(f"{count} × {reason}" for reason, count in list(r.reasons.items())[:5])
        yield {
            "grader": report.label(r.run, r.grader),
            "calls": count(r.calls),
            "without a reply": count(r.without_reply),
            "unreadable": count(r.unreadable),
            "share of replies": Estimate(r.unreadable / answered if answered else None),
            "reasons": reasons or "–",
        }


def grader_cards_table(report: Report) -> Iterator[Row]:
    """Make the table that compares each grader with the reference, by kind of criterion."""
    return (_agreement_row(report, card, row, "criterion") for card in report.cards for row in card.by_kind)


def grader_cards_by_skill_table(report: Report) -> Iterator[Row]:
    """Make the table that compares each grader with the reference, by skill."""
    return (_agreement_row(report, card, row, "skill") for card in report.cards for row in card.by_skill)


def _agreement_row(report: Report, card: GraderCard, row: TruthAgreement, heading: str) -> Row:
    measures = {name: getattr(row, name) for name in ("agreement", "sensitivity", "specificity", "kappa", "alpha")}
    measures["truth gives"] = row.earned
    heads = {**_card_heads(report, card), heading: row.criterion, "decided by both": count(row.units)}
    return heads | {name: Estimate(*measure) for name, measure in measures.items()}


def _card_heads(report: Report, card: GraderCard) -> Row:
    """Return the entries that name a card's grader and its reference."""
    truth = card.truth or "–"
    if card.simulated:
        truth += f" (simulated: {', '.join(rater.removeprefix(HUMAN) for rater in card.simulated)})"
    return {"grader": report.label(", ".join(card.runs), card.grader), "truth": truth}


def grader_bias_table(report: Report) -> Iterator[Row]:
    """Make the table that shows where each grader gives more or fewer points than the reference."""
    for card in report.cards:
        found = [(row.by, row.group, count(row.units), row.excess, row.agreement) for row in card.bias.rows]
        if card.bias.favours_own_family.value is not None:
            found.append(("family", "own minus others", count(None), card.bias.favours_own_family, Measure(None)))
        for by, group, units, excess, agreement in found:
            heads = {**_card_heads(report, card), "by": by, "group": group, "decided by both": units}
            yield {**heads, "grader minus truth": Estimate(*excess, is_signed=True), "agreement": Estimate(*agreement)}


def corrected_scores_table(report: Report) -> Iterator[Row]:
    """Make the table of full marks before and after correction for the graders' errors."""
    for card in report.cards:
        for score in card.corrected:
            problem = f"cannot be corrected: {score.problem}"
            yield {
                **_card_heads(report, card),
                "student": report.label(score.run, score.student),
                "setting": score.setting,
                "k": str(score.k),
                "texts": count(score.texts),
                "labels": count(score.labelled),
                "raw": Estimate(*score.raw),
                "corrected": Estimate(*score.corrected),
                "by": score.method if score.problem is None and score.method else problem,
            }


def grader_steadiness_table(report: Report) -> Iterator[Row]:
    """Make the table of each grader's consistency and cost."""
    for card in report.cards:
        if card.truth is not None:
            cost = card.facts.cost_per_text
            yield {
                "grader": _card_heads(report, card)["grader"],
                "model": card.facts.model or "unknown",
                "texts": count(card.texts),
                "texts with a label": count(card.labelled),
                "pairs of rounds": count(card.stability.pairs),
                "flips": Estimate(*card.stability.flips),
                "rounds": count(card.stability.rounds),
                "unreadable": Estimate(*card.stability.unreadable),
                "US dollars a text": "unknown" if cost is None else f"{cost:.4f}",
            }
