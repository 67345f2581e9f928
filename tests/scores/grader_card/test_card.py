"""Grader cards of texts that are made by hand."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from skillmix.calls import PEOPLE
from skillmix.grading.points import Points
from skillmix.scores.graders import (
    GraderFacts,
    TextUnderGraders,
    family_of,
    grader_card,
    label_weights,
    people_in,
    round_stability,
    with_people,
)

YES: Points = (True, True, True, True)
NO: Points = (False, True, True, True)


def text(number: int, points: Mapping[str, Points], **changes: object) -> TextUnderGraders:
    made = TextUnderGraders(
        run="r",
        student="s",
        combination=f"c{number}",
        generation=0,
        skills=("metaphor",),
        words=20 + number % 3,
        points=points,
        settings=("all",),
        by_code=frozenset({3}),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def texts(*counts: tuple[int, Points, Points | None], **changes: object) -> list[TextUnderGraders]:
    """So many texts with these points by the judge and by the labels."""
    pairs = [(judge, label) for number, judge, label in counts for _ in range(number)]
    return [
        text(i, {"judge": judge, **({"labels": label} if label else {})}, **changes)
        for i, (judge, label) in enumerate(pairs)
    ]


def test_measures_of_a_two_by_two_table_are_those_worked_out_by_hand() -> None:
    card = grader_card(texts((40, YES, YES), (10, NO, YES), (5, YES, NO), (45, NO, NO)), "judge", "labels")

    skill = card.by_kind[0]
    assert (skill.criterion, skill.units, skill.graded) == ("skill", 100, 100)
    assert skill.agreement.value == 0.85
    assert skill.sensitivity.value == 0.8
    assert skill.specificity.value == 0.9
    assert skill.earned.value == 0.5
    # Chance agreement is .45 × .5 + .55 × .5 = .5.
    assert skill.kappa.value == pytest.approx(0.7)
    assert skill.sensitivity[1:] == pytest.approx((0.6696, 0.8876), abs=1e-4)  # Wilson, 40 of 50
    assert [row.criterion for row in card.by_kind] == ["skill", "topic", "sense", "full marks"]
    assert card.by_kind[3].sensitivity == skill.sensitivity
    assert [row.criterion for row in card.by_skill] == ["metaphor"]
    assert card.bias.rows[0].excess.value == pytest.approx((45 - 50) / 300)


def test_a_measure_without_any_text_is_unknown_and_not_zero() -> None:
    card = grader_card(texts((30, YES, YES), (10, NO, YES)), "judge", "labels")

    assert card.by_kind[0].specificity == (None, None, None)
    assert card.by_kind[0].sensitivity.value == 0.75


def test_a_sample_without_a_label_where_the_grader_denies_still_shows_how_the_two_agree() -> None:
    nonsense = (True, True, False, True)
    card = grader_card(texts((24, YES, YES), (1, YES, nonsense), (10, nonsense, None)), "judge", "labels")

    sense = next(row for row in card.by_kind if row.criterion == "sense")
    assert (sense.units, sense.agreement.value, sense.sensitivity.value) == (25, 24 / 25, 1.0)
    assert None not in sense.agreement


def test_labels_for_some_criteria_say_nothing_about_the_others() -> None:
    card = grader_card(texts((12, YES, (True, None, None, None))), "judge", "labels")

    assert [row.criterion for row in card.by_kind] == ["skill"]


def test_criteria_that_code_decides_are_left_out() -> None:
    named = texts((20, NO, NO), by_code=frozenset({0, 3}))
    open_texts = texts((20, YES, YES))

    card = grader_card([*named, *open_texts], "judge", "labels")

    units = {row.criterion: row.units for row in card.by_kind}
    assert units == {"skill": 20, "topic": 40, "sense": 40, "full marks": 20}
    assert card.corrected[0].texts == 40
    assert card.corrected[0].corrected.value == card.corrected[0].raw.value == 0.5


def test_copies_of_a_text_in_one_combination_narrow_no_interval() -> None:
    once = texts((15, YES, YES), (5, NO, YES))
    thrice = [replace(item, generation=g) for item in once for g in range(3)]

    single, copied = (grader_card(items, "judge", "labels").by_kind[0].sensitivity for items in (once, thrice))

    assert copied.value == single.value
    assert copied[1:] == pytest.approx(single[1:])


def test_people_are_the_majority_of_those_who_rated_and_a_tie_is_unknown() -> None:
    rated = {"human:a": YES, "human:b": NO, "human:c": YES}
    tied = {"human:a": YES, "human:b": NO}
    unsure: dict[str, Points] = {"human:a": (True, None, None, True), "human:b": (True, True, None, True)}
    items = with_people([text(0, rated), text(1, tied), text(2, unsure), text(3, {"judge": YES})])

    assert items[0].points[PEOPLE] == YES
    assert items[1].points[PEOPLE] == (None, True, True, True)
    assert items[2].points[PEOPLE] == (True, None, None, True)
    assert PEOPLE not in items[3].points
    assert people_in(items) == ["human:a", "human:b", "human:c"]


def test_each_label_stands_for_the_texts_of_its_student_and_outcome() -> None:
    given = texts((10, YES, YES), (30, YES, None))
    denied = [replace(item, combination=f"d{i}") for i, item in enumerate(texts((10, NO, NO), (50, NO, None)))]
    unlabelled = texts((100, YES, None), student="t")

    weights = label_weights([*given, *denied, *unlabelled], "labels")

    assert weights[:10] == [4.0] * 10
    assert weights[40:50] == [6.0] * 10


def test_a_stratum_without_labels_counts_with_the_others_of_its_outcome() -> None:
    one = texts((10, YES, YES), (10, NO, NO))
    other = texts((20, YES, None), (5, NO, NO), student="t")

    weights = label_weights([*one, *other], "labels")

    assert weights[:10] == [3.0] * 10
    assert weights[10:20] == [1.0] * 10


def test_scores_are_corrected_by_the_labels_of_their_own_texts_if_there_are_ten_of_each_outcome() -> None:
    # 60 of 100 are given, and 9 of 12 labels there are right; 40 are denied, and 3 of 15 labels there are wrong.
    items = texts((9, YES, YES), (3, YES, NO), (48, YES, None), (3, NO, YES), (12, NO, NO), (25, NO, None))

    (score,) = grader_card(items, "judge", "labels").corrected

    assert (score.texts, score.labelled, score.method, score.problem) == (100, 27, "own labels", None)
    assert score.raw.value == 0.6
    assert score.corrected.value == pytest.approx(0.6 * 9 / 12 + 0.4 * 3 / 15)
    low, high = score.corrected[1:]
    assert low is not None
    assert high is not None
    assert 0 < low < 0.53 < high < 1


def test_a_text_whose_raters_are_unsure_counts_as_one_without_a_label() -> None:
    unsure: Points = (None, True, True, True)
    items = texts((15, YES, YES), (5, YES, NO), (10, YES, unsure), (20, NO, NO))

    (score,) = grader_card(items, "judge", "labels").corrected

    assert (score.texts, score.labelled, score.method) == (50, 40, "own labels")
    assert score.corrected.value == pytest.approx(30 / 50 * 15 / 20)


def test_a_student_without_labels_is_corrected_by_the_errors_on_others_of_the_same_k() -> None:
    labelled = texts((80, YES, YES), (20, NO, YES), (10, YES, NO), (90, NO, NO))
    scored = [replace(item, combination=f"t{i}") for i, item in enumerate(texts((45, YES, None), (55, NO, None)))]
    other = [replace(item, student="t") for item in scored]

    by_student = {score.student: score for score in grader_card([*labelled, *other], "judge", "labels").corrected}

    assert by_student["s"].method == "truth"
    assert by_student["s"].corrected.value == 0.5
    assert by_student["t"].method == "error rates"
    assert by_student["t"].corrected.value == pytest.approx((0.45 + 0.9 - 1) / (0.8 + 0.9 - 1))  # Rogan and Gladen


def test_a_grader_that_is_no_better_than_chance_corrects_nothing() -> None:
    labelled = texts((20, YES, YES), (20, NO, YES), (20, YES, NO), (20, NO, NO))
    other = texts((30, YES, None), (30, NO, None), student="t")

    score = grader_card([*labelled, *other], "judge", "labels").corrected[1]

    assert score.student == "t"
    assert score.corrected == (None, None, None)
    assert score.method is None
    assert score.problem is not None
    assert "not clearly better than chance" in score.problem


def test_labels_of_another_k_correct_nothing() -> None:
    labelled = texts((20, YES, YES), (20, NO, NO))
    both: Points = (True, True, True, True, True)
    other = [text(100 + i, {"judge": both}, skills=("metaphor", "simile"), by_code=frozenset({4})) for i in range(12)]

    score = grader_card([*labelled, *other], "judge", "labels").corrected[1]

    assert (score.k, score.corrected.value, score.problem) == (2, None, "no text of this k has a label")


def test_a_grader_that_is_generous_to_its_own_family_is_found() -> None:
    own = texts((60, YES, YES), (40, YES, NO), student="gpt", student_model="openai:gpt-4o-mini")
    others = [
        replace(item, combination=f"o{i}", student="claude", student_model="anthropic:claude-x")
        for i, item in enumerate(texts((60, YES, YES), (40, NO, NO)))
    ]

    card = grader_card([*own, *others], "judge", "labels", GraderFacts(model="openai:gpt-4o"))

    difference = card.bias.favours_own_family
    assert difference.value == pytest.approx(0.4 / 3)
    assert difference.low is not None
    assert difference.low > 0
    assert {row.group for row in card.bias.rows if row.by == "family"} == {"own family", "other families"}


def test_a_grader_of_an_unknown_family_favours_nobody() -> None:
    items = texts((10, YES, YES), student_model="openai:gpt-4o")

    card = grader_card(items, "judge", "labels", GraderFacts(model="scripted:grader"))

    assert card.bias.favours_own_family.value is None
    assert family_of("scripted:grader") is None


def test_bias_is_shown_by_length_position_and_round() -> None:
    three: Points = (True, False, True, True, True, True)
    votes = ((1.0, 0.0, 1.0, 1.0, 1.0, None), None, (1.0, 1.0, 1.0, 1.0, 1.0, None))
    items = [
        text(
            i,
            {"judge": three, "labels": (True, True, True, True, True, True)},
            skills=("a", "b", "c"),
            votes={"judge": votes},
            by_code=frozenset({5}),
        )
        for i in range(9)
    ]

    card = grader_card(items, "judge", "labels")

    groups = {(row.by, row.group): row.excess.value for row in card.bias.rows}
    assert groups["position", "skill 1"] == 0.0
    assert groups["position", "skill 2"] == -1.0
    assert groups["round", "round 1"] == pytest.approx(-0.2)
    assert groups["round", "round 3"] == 0.0
    assert ("round", "round 2") not in groups
    assert [group for by, group in groups if by == "length"] == [
        "short, 20 to 20 words",
        "medium, 21 to 21 words",
        "long, 22 to 22 words",
    ]
    stability = round_stability(items, "judge")
    assert (stability.rounds, stability.pairs) == (27, 45)
    assert stability.unreadable.value == pytest.approx(1 / 3)
    assert stability.flips.value == pytest.approx(1 / 5)


def test_the_cost_of_a_text_is_unknown_if_the_cost_of_the_calls_is() -> None:
    assert GraderFacts(cost_usd=3.0, texts=120).cost_per_text == 0.025
    assert GraderFacts(cost_usd=None, texts=120).cost_per_text is None
    assert GraderFacts(cost_usd=0.0, texts=0).cost_per_text is None


def test_without_a_truth_a_card_has_only_what_the_grader_itself_shows() -> None:
    card = grader_card(texts((10, YES, None)), "judge", None)

    assert not (card.by_kind or card.by_skill or card.bias.rows)
    assert (card.texts, card.labelled) == (10, 0)
    assert card.corrected[0].problem == "no text of this k has a label"
