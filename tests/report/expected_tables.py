"""Every table of a report, worked out a second time: whole rows, words and numbers.

A table or a column that nobody claims here makes `test_numbers.py` fail. Bootstrap intervals are drawn again from the
documented seed, by other code and with scipy's t quantiles; everything else is exact.
"""

from collections.abc import Callable

from tests.report import expected_cards, expected_data, expected_graders, expected_result, expected_scores
from tests.report.expected_scores import Case, Row

TABLES: dict[str, Callable[[Case], list[Row]]] = {
    "students-compared": expected_scores.students_compared,
    "before-and-after": expected_scores.before_and_after,
    "seen-and-reserved": expected_scores.seen_and_reserved,
    "data-efficiency": expected_scores.data_efficiency,
    "graders-side-by-side": expected_scores.graders_side_by_side,
    "common-skills-removed": expected_scores.common_skills_removed,
    "rules-side-by-side": expected_scores.rules_side_by_side,
    "points-by-criterion": expected_graders.points_by_criterion,
    "why-full-marks-were-missed": expected_graders.why_full_marks_were_missed,
    "observed-and-independent": expected_graders.observed_and_independent,
    "texts-that-follow-an-example": expected_graders.texts_that_follow_an_example,
    "templates": expected_graders.templates,
    "template-baseline": expected_scores.template_baseline,
    "rounds": expected_graders.rounds,
    "graders-agreement": expected_graders.graders_agreement,
    "graders-disagree-on": expected_graders.graders_disagree_on,
    "unreadable": expected_graders.unreadable,
    "grader-cards": expected_cards.grader_cards,
    "grader-cards-by-skill": expected_cards.grader_cards_by_skill,
    "grader-bias": expected_cards.grader_bias,
    "grader-steadiness": expected_cards.grader_steadiness,
    "corrected-scores": expected_cards.corrected_scores,
    "where-the-time-went": expected_data.where_the_time_went,
    "skills": expected_result.skills,
    "hardest-skills": expected_result.hardest_skills,
    "yield": expected_data.data_yield,
    "lineage": expected_data.lineage,
    "findings": expected_data.findings,
    "calls-and-cost": expected_data.calls_and_cost,
}


def expected(case: Case, name: str) -> list[Row]:
    """The rows of a table by its name."""
    if name.startswith("scores-"):
        setting = name.removeprefix("scores-").removesuffix("-all-metrics")
        metrics = expected_scores.ALL if name.endswith("-all-metrics") else expected_scores.MAIN
        return expected_scores.scores(case, setting, metrics)
    if name.startswith("paper-"):
        return expected_data.paper_table(case, name)
    if name not in TABLES:
        raise AssertionError(f"compute the table {name} a second time, and add it to TABLES in {__name__}")
    return TABLES[name](case)
