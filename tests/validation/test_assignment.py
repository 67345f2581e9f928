"""Assignment of texts to raters: the requested overlap, otherwise separate lists, and no answer is lost."""

from itertools import combinations

import pytest

from skillmix.validation.sample import SampleText
from skillmix.validation.task import assign

TEXTS = [SampleText(f"t{n}", (f"s{n % 3}", str(n % 2 + 1)), (f"skill {n % 7}",)) for n in range(400)]


@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("raters", [("ann",), ("ann", "bo"), ("ann", "bo", "cy")])
def test_every_rater_has_n_texts_and_the_requested_overlap(raters: tuple[str, ...], overlap: float) -> None:
    made = assign(TEXTS, raters, n=50, overlap=overlap)

    assert [len(set(own)) for own in made.texts.values()] == [50] * len(raters)
    for one, other in combinations(made.texts.values(), 2):
        assert len(set(one) & set(other)) == round(50 * overlap)
    assert made.shared == (round(50 * overlap) if len(raters) > 1 else 0)


def test_a_larger_number_keeps_the_texts() -> None:
    small, large = (assign(TEXTS, ("ann", "bo"), n=n, overlap=0.3) for n in (50, 80))

    for rater in ("ann", "bo"):
        assert set(small.texts[rater]) <= set(large.texts[rater])


def test_another_person_changes_hardly_anything_for_the_first_ones() -> None:
    alone = assign(TEXTS, ("ann",), n=50, overlap=0.3).texts["ann"]
    together = assign(TEXTS, ("ann", "bo", "cy"), n=50, overlap=0.3).texts["ann"]

    assert len(set(alone) & set(together)) >= 45


def test_people_see_the_shared_texts_in_different_orders_and_places() -> None:
    made = assign(TEXTS, ("ann", "bo"), n=50, overlap=1.0)

    assert set(made.texts["ann"]) == set(made.texts["bo"])
    assert made.texts["ann"] != made.texts["bo"]


def test_earlier_answers_count_in_place_of_texts_without_an_answer() -> None:
    plain = assign(TEXTS, ("ann", "bo"), n=50, overlap=0.3)
    elsewhere = [text.id for text in TEXTS if text.id not in plain.texts["ann"]][:10]
    shared = set(plain.texts["ann"]) & set(plain.texts["bo"])

    made = assign(TEXTS, ("ann", "bo"), n=50, overlap=0.3, answered={"ann": elsewhere})

    assert len(set(made.texts["ann"])) == 50
    assert set(elsewhere) <= set(made.texts["ann"]) and shared <= set(made.texts["ann"])
    assert made.texts["bo"] == plain.texts["bo"]


def test_answers_about_texts_that_are_gone_and_more_answers_than_texts_do_no_harm() -> None:
    plain = assign(TEXTS, ("ann",), n=5, overlap=0.0)

    made = assign(TEXTS, ("ann",), n=5, overlap=0.0, answered={"ann": [*plain.texts["ann"], "gone", "t1", "t2"]})

    assert made == plain


def test_few_texts_are_shared_rather_than_missing() -> None:
    made = assign(TEXTS[:60], ("ann", "bo"), n=50, overlap=0.0)
    assert [len(set(own)) for own in made.texts.values()] == [50, 50]
    assert made.distinct == 60

    made = assign(TEXTS[:3], ("ann", "bo"), n=50, overlap=0.5)
    assert [sorted(own) for own in made.texts.values()] == [["t0", "t1", "t2"]] * 2
