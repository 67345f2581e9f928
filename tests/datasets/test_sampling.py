"""Waves towards a target: pure in what came before, in draw order, spread over skills."""

from collections import Counter
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from skillmix.catalog.combinations import Combination, combination_of, is_reserved
from skillmix.datasets.writing.sampling import Candidate, Candidates, Sampler, Target, _Taking
from skillmix.hashing import digest

SKILLS = tuple("abcdefgh")


def pool(k: int = 1, topics: int = 10) -> list[Combination]:
    sets = [(a,) for a in SKILLS] if k == 1 else [(a, b) for a in SKILLS for b in SKILLS if a < b]
    return [combination_of(list(skills), f"topic {n}") for n in range(topics) for skills in sets]


def is_good(candidate: Candidate, rate: float) -> bool:
    return digest("good", candidate.combination.id, candidate.generation, size=2)[0] < rate * 256


def sampled(target: Target, *, rate: float, k: int = 1, never: frozenset[str] = frozenset()) -> tuple[Sampler, int]:
    sampler = Sampler(Candidates(pool(k), generations=2), target)
    waves = 0
    while sampler.next_wave():
        waves += 1
        sampler.learn(is_good(c, rate) and never.isdisjoint(c.combination.skills) for c in sampler.tried)
    return sampler, waves


@settings(deadline=None)
@given(st.integers(1, 60), st.floats(0.05, 1.0), st.sampled_from([1, 2]))
def test_the_target_is_met_by_the_first_good_texts_in_draw_order(kept: int, rate: float, k: int) -> None:
    sampler, waves = sampled(Target(kept=kept, most=100_000), rate=rate, k=k)

    good = [place for place, candidate in enumerate(sampler.tried) if is_good(candidate, rate)]
    assert list(sampler.taken) == good[:kept]
    assert waves <= 12
    again, _ = sampled(Target(kept=kept, most=100_000), rate=rate, k=k)
    assert again.tried == sampler.tried


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_a_smaller_target_is_part_of_a_larger_one(one: int, other: int) -> None:
    small, _ = sampled(Target(kept=min(one, other), most=10_000), rate=0.3)
    large, _ = sampled(Target(kept=max(one, other), most=10_000), rate=0.3)

    chosen = [[sampler.tried[place] for place in sampler.taken] for sampler in (small, large)]
    assert chosen[0] == chosen[1][: len(chosen[0])]


def test_candidates_go_round_with_new_generations() -> None:
    two = pool()[:2]
    candidates = Candidates(iter(two), generations=2)

    drawn = [candidates[n] for n in range(8)]

    assert [(c.combination is two[1], c.generation) for c in drawn] == [
        (False, 0),
        (False, 1),
        (True, 0),
        (True, 1),
        (False, 2),
        (False, 3),
        (True, 2),
        (True, 3),
    ]


def test_nothing_is_written_beyond_the_most() -> None:
    sampler, _ = sampled(Target(kept=50, most=120), rate=0.0)

    assert len(sampler.tried) == 120
    assert list(sampler.taken) == []
    assert sampler.is_exhausted


def test_no_combinations_are_no_candidates() -> None:
    sampler = Sampler(Candidates(()), Target(kept=5, most=10))

    assert list(sampler.next_wave()) == []


def test_no_skill_has_more_than_the_ceiling() -> None:
    sampler, _ = sampled(Target(kept=24, most=10_000, ceiling=3), rate=0.5)

    counts = Counter(s for place in sampler.taken for s in sampler.tried[place].combination.skills)
    assert set(counts.values()) == {3}
    assert len(sampler.taken) == 24


def test_a_ceiling_that_cannot_be_met_ends_the_sampling() -> None:
    sampler, _ = sampled(Target(kept=30, most=100_000, ceiling=3), rate=0.5)

    assert len(sampler.taken) == 24
    assert sampler.is_exhausted


def test_every_skill_reaches_its_floor_where_it_can() -> None:
    target = Target(kept=20, most=10_000, floor=2, skills=SKILLS)
    plain, _ = sampled(Target(kept=20, most=10_000), rate=0.2)
    sampler, _ = sampled(target, rate=0.2)

    def least(of: Sampler) -> int:
        counts = Counter(s for place in of.taken for s in of.tried[place].combination.skills)
        return min(counts[s] for s in SKILLS)

    assert least(plain) < 2
    assert least(sampler) >= 2
    assert len(sampler.taken) == 20
    assert sampler.below_floor == {}


def test_a_floor_that_cannot_be_met_is_given_up_and_told() -> None:
    sampler, _ = sampled(Target(kept=20, most=10_000, floor=2, skills=SKILLS), rate=0.2, never=frozenset({"c"}))

    assert sampler.below_floor == {"c": 0}
    assert len(sampler.taken) == 20
    assert sum("c" in candidate.combination.skills for candidate in sampler.tried) <= 3 * 200


def test_room_is_held_back_for_skills_below_their_floor() -> None:
    tried = [Candidate(combination_of([skill], "t"), n) for n, skill in enumerate("aaaab")]

    taking = _Taking(Target(kept=3, most=9, floor=1, skills=("a", "b")), frozenset({"a", "b"}))
    taking.go_on(tried, bytearray([True] * 5))

    assert list(taking.taken) == [0, 1, 4]


def test_reserved_sets_are_a_share_of_all_and_a_larger_share_only_adds() -> None:
    sets = [list(c.skills) for c in islice(pool(2), 28)]
    many = [[f"s{a}", f"s{b}"] for a in range(60) for b in range(a)]

    assert abs(sum(is_reserved(s, 0.2) for s in many) / len(many) - 0.2) < 0.03
    assert all(is_reserved(s, 0.4) for s in many if is_reserved(s, 0.2))
    assert all(is_reserved(s, 0.5) == is_reserved(s[::-1], 0.5) for s in sets)
