"""Tables about templates: how far texts with full marks are templates, and what a student of templates would earn."""

from skillmix.report.records import Report
from skillmix.report.registry import table
from skillmix.report.tables.table import LONG, Count, Entry, Estimate, ReportTable


@table(section="scores", order=25)
def baseline_table(report: Report) -> ReportTable | None:
    """What a student that joins fixed clauses earns on the same combinations."""
    if not report.baselines:
        return None
    rows: list[tuple[Entry, ...]] = [
        (
            report.label(b.run, "template baseline"),
            b.setting,
            str(b.k),
            Count(b.combinations),
            *(Estimate(shares[form]) for form in ("fixed", "slot") for shares in (b.full_marks, b.woven)),
        )
        for b in report.baselines
    ]
    return ReportTable(
        name="template-baseline",
        title="Template baseline: what fixed clauses earn",
        note="No model wrote these texts. Code joins one fixed clause for each skill and the topic's name, on the "
        "combinations of the run, at most 200 for each setting and k; the first clauses that earn full marks by code "
        "count. Named once: the topic's name comes once, before the clauses. Named in every clause: each clause has a "
        "slot for it. Full marks near these values say little about a student; woven full marks say more.",
        columns=("student", "setting", "k", "combinations", *(("full marks", "woven full marks") * 2)),
        rows=tuple(rows),
        groups=(("", 4), ("topic named once", 2), ("topic named in every clause", 2)),
    )


@table(section="graders", order=26)
def template_table(report: Report) -> ReportTable | None:
    """How far the texts with full marks of each cell are templates."""
    following = {f.key: f.full_marks_following for f in report.followed}
    rows: list[tuple[Entry, ...]] = [
        (
            report.label(t.key.run, t.key.student),
            t.key.grader,
            t.key.setting,
            str(t.key.k),
            Count(t.full_marks),
            Estimate(_share(t.repeated, t.full_marks)),
            Estimate(t.distinct_4),
            Estimate(_share(following.get(t.key), t.full_marks)),
        )
        for t in report.templates
    ]
    if not rows:
        return None
    return ReportTable(
        name="templates",
        title="How far texts with full marks are templates",
        note="Same words: the share of texts with full marks that show each skill in the same words as a text on "
        "another combination of the cell, with the topic's words masked; – where no code checked the skills. "
        "Distinct-4: distinct four-word runs by all four-word runs of these texts. Follow an example: the share with "
        "half or more of the three-word runs of an example in the prompts.",
        columns=("student", "grader", "setting", "k", "full marks", "same words", "distinct-4", "follow an example"),
        rows=tuple(rows),
        is_detail=len(rows) > LONG,
    )


def _share(count: int | None, texts: int) -> float | None:
    return None if count is None or not texts else count / texts
