"""The window over the draw order: which candidates begin, and which texts are taken; spread over skills."""

from collections import Counter
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from skillmix.catalog.combinations import Combination, combination_of, is_reserved
from skillmix.datasets.window import Candidate, Target, Window, candidates
from skillmix.hashing import digest

SKILLS = tuple("abcdefgh")


def pool(k: int = 1, topics: int = 10) -> list[Combination]:
    sets = [(a,) for a in SKILLS] if k == 1 else [(a, b) for a in SKILLS for b in SKILLS if a < b]
    return [combination_of(list(skills), f"topic {n}") for n in range(topics) for skills in sets]


def is_good(candidate: Candidate, rate: float) -> bool:
    return digest("good", candidate.combination.id, candidate.generation, size=2)[0] < rate * 256


def sampled(target: Target, *, rate: float, k: int = 1, never: frozenset[str] = frozenset()) -> Window:
    window = Window(candidates(pool(k), generations=2), target)
    while not window.is_over:
        candidate = window.begun[len(window.accepted)]
        window.decide(is_accepted=is_good(candidate, rate) and never.isdisjoint(candidate.combination.skills))
    if window.missing > 0:
        window.give_up_floors(frozenset(target.skills))
    return window


@settings(deadline=None)
@given(st.integers(1, 60), st.floats(0.05, 1.0), st.sampled_from([1, 2]))
def test_the_target_is_met_by_the_first_good_texts_in_draw_order(kept: int, rate: float, k: int) -> None:
    window = sampled(Target(kept=kept, most=100_000), rate=rate, k=k)

    assert window.begun == list(islice(candidates(pool(k), generations=2), len(window.begun)))
    good = [place for place, candidate in enumerate(window.begun) if is_good(candidate, rate)]
    assert window.taken == good[:kept]
    assert len(window.accepted) == good[kept - 1] + 1


def test_the_window_is_what_is_missing_and_grows_with_what_is_known_of_the_yield() -> None:
    window = Window(candidates(pool()), Target(kept=20, most=10_000))
    sizes = []
    for index in range(80):
        sizes.append(len(window.begun) - len(window.accepted))
        window.decide(is_accepted=index % 5 == 4)

    assert sizes[0] == 20
    assert sizes[40] == 40  # 12 missing texts at a yield of a fifth would take 60, but only 40 are known
    assert 30 <= sizes[70] <= 38  # 6 missing texts at a yield of a fifth; a window that has begun does not shrink
    assert max(sizes) < 60


def test_with_a_yield_of_one_no_conversation_is_in_vain() -> None:
    assert len(sampled(Target(kept=50, most=10_000), rate=1.0).begun) == 50


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40))
def test_a_smaller_target_is_part_of_a_larger_one(one: int, other: int) -> None:
    small = sampled(Target(kept=min(one, other), most=10_000), rate=0.3)
    large = sampled(Target(kept=max(one, other), most=10_000), rate=0.3)

    chosen = [[window.begun[place] for place in window.taken] for window in (small, large)]
    assert chosen[0] == chosen[1][: len(chosen[0])]


def test_candidates_go_round_with_new_generations() -> None:
    two = pool()[:2]

    drawn = list(islice(candidates(iter(two), generations=2), 8))

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
    window = sampled(Target(kept=50, most=120), rate=0.0)

    assert len(window.begun) == len(window.accepted) == 120
    assert window.taken == []


def test_no_combinations_are_no_candidates() -> None:
    window = Window(candidates(()), Target(kept=5, most=10))

    assert window.is_over
    assert not window.begun


def test_no_skill_has_more_than_the_ceiling() -> None:
    window = sampled(Target(kept=24, most=10_000, ceiling=3), rate=0.5)

    counts = Counter(s for place in window.taken for s in window.begun[place].combination.skills)
    assert set(counts.values()) == {3}
    assert len(window.taken) == 24


def test_a_ceiling_that_cannot_be_met_ends_the_sampling() -> None:
    window = sampled(Target(kept=30, most=100_000, ceiling=3), rate=0.5)

    assert len(window.taken) == 24


def test_every_skill_reaches_its_floor_where_it_can() -> None:
    target = Target(kept=20, most=10_000, floor=2, skills=SKILLS)
    plain = sampled(Target(kept=20, most=10_000), rate=0.2)
    window = sampled(target, rate=0.2)

    def least(of: Window) -> int:
        counts = Counter(s for place in of.taken for s in of.begun[place].combination.skills)
        return min(counts[s] for s in SKILLS)

    assert least(plain) < 2
    assert least(window) >= 2
    assert len(window.taken) == 20
    assert window.below_floor == {}


def test_a_floor_that_cannot_be_met_is_given_up_and_told() -> None:
    window = sampled(Target(kept=20, most=10_000, floor=2, skills=SKILLS), rate=0.2, never=frozenset({"c"}))

    assert window.below_floor == {"c": 0}
    assert len(window.taken) == 20
    assert sum("c" in candidate.combination.skills for candidate in window.begun) <= 3 * 200


def test_room_is_held_back_for_skills_below_their_floor() -> None:
    order = candidates([combination_of([skill], f"t{n}") for n, skill in enumerate("aaaab")])
    window = Window(order, Target(kept=3, most=5, floor=1, skills=("a", "b")))

    while not window.is_over:
        window.decide(is_accepted=True)

    assert window.taken == [0, 1, 4]


def test_reserved_sets_are_a_share_of_all_and_a_larger_share_only_adds() -> None:
    sets = [list(c.skills) for c in islice(pool(2), 28)]
    many = [[f"s{a}", f"s{b}"] for a in range(60) for b in range(a)]

    assert abs(sum(is_reserved(s, 0.2) for s in many) / len(many) - 0.2) < 0.03
    assert all(is_reserved(s, 0.4) for s in many if is_reserved(s, 0.2))
    assert all(is_reserved(s, 0.5) == is_reserved(s[::-1], 0.5) for s in sets)
