"""Simulated people: their rates are kept, and their answers depend on nothing but name, text and criterion."""

import pytest

from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.models.scripted import code, scripted_rater

NAMES = ("metaphor", "topic", "sense")


def texts(shows: bool) -> list[tuple[Combination, str]]:
    words = code("metaphor") if shows else "nothing"
    return [(Combination(f"c{i}", ("metaphor",), "Sewing"), f"Scripted words {words}.") for i in range(2000)]


@pytest.mark.parametrize(("shows", "share"), [(True, 0.9), (False, 0.05)])
def test_a_rater_errs_at_the_rates_of_its_spec(shows: bool, share: float) -> None:
    rater = scripted_rater("scripted:rater?sensitivity=0.9&specificity=0.95")

    votes = [rater.votes("ann", combination, text, NAMES)["metaphor"] for combination, text in texts(shows)]

    assert sum(vote or 0 for vote in votes) / len(votes) == pytest.approx(share, abs=0.02)


def test_two_raters_with_one_spec_err_apart_and_each_always_in_the_same_way() -> None:
    rater = scripted_rater("scripted:rater?sensitivity=0.5&unsure=0.2")

    ann, again, bo = (
        [rater.votes(name, combination, text, NAMES) for combination, text in texts(True)]
        for name in ("ann", "ann", "bo")
    )

    assert ann == again
    assert 0.5 < sum(one != other for one, other in zip(ann, bo, strict=True)) / len(ann) < 0.95
    unsure = sum(vote is None for votes in ann for vote in votes.values()) / (3 * len(ann))
    assert unsure == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("scripted:ratr", 'Did you mean "scripted:rater"?'),
        ("openai:gpt-4o", "is not a rater"),
        ("scripted:rater?sensitive=1", "no rate 'sensitive'"),
        ("scripted:rater?sensitivty=1", 'Did you mean "sensitivity"?'),
        ("scripted:rater?unsure=2", "unsure is 2, which is not between 0 and 1"),
        ("scripted:rater?unsure=nan", "unsure is nan, which is not between 0 and 1"),
        ("scripted:rater?unsure=", "unsure is '', which is not a number"),
    ],
)
def test_a_faulty_spec_is_an_error_with_a_hint(spec: str, fault: str) -> None:
    with pytest.raises(UserError) as error:
        scripted_rater(spec)

    assert fault in f"{error.value.message} {error.value.hint}"
