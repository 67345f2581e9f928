"""The sample of texts for people: proportional, evenly spread, deterministic."""

from collections import Counter
from itertools import islice

import pytest

from skillmix.validation.sample import SampleText, sample_order
from tests.nasty_texts import takes_longer

STUDENTS = {"weak": 300, "strong": 600, "third": 100}


def candidates() -> list[SampleText]:
    """Return a thousand texts by three students with one to five of thirty skills; one in four has full marks."""
    made = []
    for student, count in STUDENTS.items():
        for number in range(count):
            k = number % 5 + 1
            outcome = "full marks" if number % 4 == 0 else "less"
            skills = tuple(f"skill {(number * 7 + 11 * place) % 30}" for place in range(k))
            made.append(SampleText(f"{student}-{number}", (student, str(k), outcome), skills))
    return made


def test_every_text_comes_once() -> None:
    texts = candidates()

    order = list(sample_order(texts, "all", 0))

    assert sorted(order) == sorted(text.id for text in texts)


def test_the_first_texts_are_the_same_whoever_asks_and_another_seed_chooses_others() -> None:
    texts = candidates()
    first = list(islice(sample_order(texts, "all", 0), 50))

    assert list(sample_order(texts[::-1], "all", 0))[:50] == first
    assert len(set(first) & set(islice(sample_order(texts, "all", 1), 50))) < 15


@pytest.mark.parametrize("n", [50, 100, 400])
def test_students_numbers_of_skills_and_outcomes_come_in_proportion(n: int) -> None:
    texts = candidates()
    by_id = {text.id: text for text in texts}
    chosen = [by_id[one] for one in islice(sample_order(texts, "all", 0), n)]

    for depth in (0, 1, 2):
        everywhere = Counter(text.strata[depth] for text in texts)
        found = Counter(text.strata[depth] for text in chosen)
        for name, count in everywhere.items():
            assert abs(found[name] - n * count / len(texts)) <= 4, (depth, name)
    student_and_outcome = Counter((text.strata[0], text.strata[2]) for text in chosen)
    assert abs(student_and_outcome["strong", "full marks"] - 0.15 * n) <= 4


def test_skills_come_more_evenly_than_by_chance() -> None:
    texts = candidates()
    by_id = {text.id: text for text in texts}

    def spread(ids: list[str]) -> float:
        total = Counter(skill for text in texts for skill in text.skills)
        found = Counter(skill for one in ids for skill in by_id[one].skills)
        shares = [found[skill] / count for skill, count in total.items()]
        mean = sum(shares) / len(shares)
        return sum((share - mean) ** 2 for share in shares)

    without_skills = [SampleText(text.id, text.strata, ()) for text in texts]
    by_skill = [spread(list(islice(sample_order(texts, "all", seed), 100))) for seed in range(5)]
    by_chance = [spread(list(islice(sample_order(without_skills, "all", seed), 100))) for seed in range(5)]
    assert sum(by_skill) < 0.35 * sum(by_chance)


def test_over_seeds_every_text_has_the_same_chance() -> None:
    texts = candidates()[::10]
    counts: Counter[str] = Counter()
    for seed in range(200):
        counts.update(islice(sample_order(texts, "chance", seed), 20))

    by_stratum: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        by_stratum[text.strata[:1]] += counts[text.id]
    for student, count in STUDENTS.items():
        assert abs(by_stratum[(student,)] / (200 * 20) - count / 1000) < 0.015


def test_twenty_thousand_texts_take_no_time() -> None:
    texts = [
        SampleText(f"t{n}", (f"s{n % 10}", str(n % 5), "less"), (f"skill {n % 97}", f"skill {n % 89}"))
        for n in range(20_000)
    ]

    assert len(set(sample_order(texts, "all", 0))) == 20_000
    # 1.2 s; examining every text for each choice would take minutes
    assert not takes_longer(lambda: list(sample_order(texts, "all", 0)), seconds=8)


def test_no_text_and_one_text_are_no_special_case() -> None:
    assert list(sample_order([], "all", 0)) == []
    assert list(sample_order([SampleText("only", ("a",), ())], "all", 0)) == ["only"]
