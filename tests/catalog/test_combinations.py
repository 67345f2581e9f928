from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations as all_subsets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmix.catalog.catalog import SETTINGS, Catalog, Setting
from skillmix.catalog.combinations import (
    EVALUATION_SHARE,
    Combination,
    Draw,
    Purpose,
    all_combinations,
    combination_of,
    draw_combinations,
    draw_ladder,
    draw_reserved,
    is_reserved,
    training_draw,
)
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.hashing import permuted, seed_of, unpermuted
from skillmix.scores.statistics.intervals import wilson_interval


def draw_from(
    catalog: Catalog, k: int, *, setting: Setting = "all", seed: int = 0, purpose: Purpose = "evaluation"
) -> Draw:
    draw = Draw(catalog.pool(setting), setting, k, seed)
    return training_draw(draw, catalog.pools()) if purpose == "training" else draw


@pytest.mark.parametrize("k", range(1, 7))
def test_every_combination_is_drawn_once(tiny_catalog: Catalog, k: int) -> None:
    draw = draw_from(tiny_catalog, k)

    drawn = draw_combinations(draw, draw.total)

    expected = {
        (frozenset(skills), topic)
        for skills in all_subsets([s.name for s in tiny_catalog.skills], k)
        for topic in tiny_catalog.topics
    }
    assert {(frozenset(c.skills), c.topic) for c in drawn} == expected
    assert len(drawn) == len(expected) == len({c.id for c in drawn})


def test_a_longer_draw_starts_with_a_shorter_one(tiny_catalog: Catalog) -> None:
    draw = draw_from(tiny_catalog, 3)

    assert draw_combinations(draw, 50)[:30] == draw_combinations(draw, 30)


def test_reserved_draws_are_the_reserved_part_of_the_whole_draw(tiny_catalog: Catalog) -> None:
    draw = draw_from(tiny_catalog, 2)
    reserved = [c for c in draw_combinations(draw, draw.total) if is_reserved(c.skills, 0.4)]

    assert 5 < len(reserved) < draw.total
    assert draw_reserved(draw, len(reserved), 0.4) == reserved
    assert draw_reserved(draw, 3, 0.4) == reserved[:3]
    with pytest.raises(UserError, match=f"Only {len(reserved)} combinations of k = 2 have a reserved skill set"):
        draw_reserved(draw, len(reserved) + 1, 0.4)
    for k, share in ((1, 0.4), (2, 0.0)):
        with pytest.raises(UserError, match="is reserved at a share"):
            draw_reserved(draw_from(tiny_catalog, k), 1, share)


def test_draws_differ_by_seed_purpose_and_setting(tiny_catalog: Catalog) -> None:
    draws = [
        draw_from(tiny_catalog, 2),
        draw_from(tiny_catalog, 2, seed=1),
        draw_from(tiny_catalog, 2, purpose="training"),
        Draw(tiny_catalog.pool("all"), "train", 2, 0),
    ]

    assert len({tuple(c.id for c in draw_combinations(draw, 20)) for draw in draws}) == 4


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_draws_only_from_its_side(tiny_catalog: Catalog, setting: Setting) -> None:
    draw = draw_from(tiny_catalog, 2, setting=setting)
    side = tiny_catalog.partition().side(setting)

    for combination in draw_combinations(draw, draw.total):
        assert set(combination.skills) <= set(side.skills)
        assert combination.topic in side.topics


def test_the_order_of_catalog_files_does_not_matter(tiny_catalog: Catalog) -> None:
    side = tiny_catalog.pool("all")
    reversed_side = type(side)(side.skills[::-1], side.topics[::-1])

    one = draw_combinations(Draw(side, "all", 3, 0), 40)
    other = draw_combinations(Draw(reversed_side, "all", 3, 0), 40)

    assert one == other


def test_asking_for_more_than_exist_says_how_many_exist(tiny_catalog: Catalog) -> None:
    with pytest.raises(UserError, match="has only 60"):
        draw_combinations(draw_from(tiny_catalog, 2), 61)


@pytest.mark.parametrize("k", [0, -1, 7])
def test_impossible_k_is_refused(tiny_catalog: Catalog, k: int) -> None:
    with pytest.raises(UserError, match="6 skills"):
        draw_combinations(draw_from(tiny_catalog, k), 1)


def test_an_id_depends_on_the_set_of_skills_and_the_topic_alone() -> None:
    assert combination_of(["b", "a"], "t") == combination_of(["a", "b"], "t")
    assert combination_of(["a", "b"], "t").id != combination_of(["a", "b"], "u").id
    assert combination_of(["a", "b"], "t").id != combination_of(["a b"], "t").id


def test_a_skill_given_twice_is_refused() -> None:
    with pytest.raises(UserError):
        combination_of(["a", "a"], "t")


@pytest.mark.parametrize("k", range(2, 6))
def test_each_rung_of_a_ladder_extends_the_one_below(tiny_catalog: Catalog, k: int) -> None:
    count = 8

    lower = draw_ladder(draw_from(tiny_catalog, k - 1), count)
    upper = draw_ladder(draw_from(tiny_catalog, k), count)

    for below, above in zip(lower, upper, strict=True):
        assert set(below.skills) < set(above.skills)
        assert below.topic == above.topic
        assert above.k == k
    assert len({c.id for c in upper}) == count


def test_a_ladder_is_prefix_stable(tiny_catalog: Catalog) -> None:
    draw = draw_from(tiny_catalog, 4)

    assert draw_ladder(draw, 8)[:5] == draw_ladder(draw, 5)


def test_a_ladder_that_runs_out_says_how_long_it_can_be(tiny_catalog: Catalog) -> None:
    with pytest.raises(UserError, match="has only 4"):
        draw_ladder(draw_from(tiny_catalog, 6), 5)
    with pytest.raises(UserError, match="there are only 24 pairs of a skill and a topic"):
        draw_ladder(draw_from(tiny_catalog, 2), 25)
    with pytest.raises(UserError, match="Only 10 different ladders"):
        draw_ladder(draw_from(tiny_catalog, 5), 12)


def test_skills_are_drawn_evenly() -> None:
    """Chi-square over 10,000 draws of 2 of 20 skills: 19 degrees of freedom, 0.1 % point 43.8."""
    from skillmix.catalog.catalog import Side

    side = Side(tuple(f"s{i}" for i in range(20)), tuple(f"t{i}" for i in range(200)))
    drawn = draw_combinations(Draw(side, "all", 2, 7), 10_000)

    counts = [sum(f"s{i}" in c.skills for c in drawn) for i in range(20)]

    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 43.8


@pytest.mark.parametrize("total", [1, 2, 3, 7, 64, 65, 1000])
def test_the_permutation_is_one(total: int) -> None:
    assert sorted(permuted(i, total, b"k") for i in range(total)) == list(range(total))


def test_large_totals_work() -> None:
    from skillmix.catalog.catalog import Side

    side = Side(tuple(f"s{i}" for i in range(104)), tuple(f"t{i}" for i in range(100)))

    drawn = draw_combinations(Draw(side, "all", 52, 0), 50)

    assert len({c.id for c in drawn}) == 50
    assert all(isinstance(c, Combination) and c.k == 52 for c in drawn)


def test_call_seeds_have_31_bits_and_depend_on_the_key() -> None:
    seeds = {seed_of(0, f"key {i}") for i in range(1000)}

    assert len(seeds) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_training_draw_has_nothing_of_the_first_fifth_of_any_evaluation(
    tiny_catalog: Catalog, setting: Setting, k: int
) -> None:
    for catalog in (tiny_catalog, load_catalog("verifiable") if k < 3 else tiny_catalog):
        drawn = list(all_combinations(draw_from(catalog, k, setting=setting, purpose="training")))

        evaluated = set()
        for other in SETTINGS:
            evaluation = draw_from(catalog, k, setting=other)
            # A fifth of all positions, those of combinations that are never drawn included.
            evaluation = replace(evaluation, side=replace(evaluation.side, impossible=frozenset()))
            evaluated |= {c.id for c in draw_combinations(evaluation, int(EVALUATION_SHARE * evaluation.total))}
        every = {c.id: c for c in all_combinations(draw_from(catalog, k, setting=setting))}
        assert {c.id for c in drawn} == every.keys() - evaluated
        assert len(drawn) == len({c.id for c in drawn}) > 0


def test_a_training_draw_must_name_its_evaluations(tiny_catalog: Catalog) -> None:
    with pytest.raises(ValueError, match="only a training draw"):
        Draw(tiny_catalog.pool("train"), "train", 1, 0, "training")


@given(st.integers(1, 10**12), st.data(), st.binary(min_size=1, max_size=32))
def test_a_permutation_can_be_undone(total: int, data: st.DataObject, key: bytes) -> None:
    index = data.draw(st.integers(0, total - 1))

    assert unpermuted(permuted(index, total, key), total, key) == index


@pytest.mark.parametrize("draw", [draw_combinations, draw_ladder])
def test_no_draw_combines_a_skill_with_one_that_it_mostly_brings(
    draw: Callable[[Draw, int], list[Combination]],
) -> None:
    catalog = load_catalog("verifiable")
    pairs = [{pair.skill, pair.brings} for pair in catalog.entailed]

    drawn = draw(Draw(catalog.pool("all"), "all", 3, 0), 2000)

    assert {"symploce", "epistrophe"} in pairs
    assert not any(pair <= set(combination.skills) for pair in pairs for combination in drawn)


def test_every_entailed_pair_is_beyond_chance() -> None:
    for pair in load_catalog("verifiable").entailed:
        assert wilson_interval(pair.with_both / pair.texts, pair.texts).low >= 0.5


@pytest.mark.parametrize("k", [1, 2])
def test_a_draw_around_combinations_keeps_the_order_of_the_others(tiny_catalog: Catalog, k: int) -> None:
    draw = Draw(tiny_catalog.pool("all"), "all", k, seed=0)
    plain = draw_combinations(draw, 12)
    around = replace(draw, without=frozenset(c.id for c in plain[1:4]))

    assert draw_combinations(around, 9) == [plain[0], *plain[4:12]]
    assert draw_combinations(around, 15)[:9] == draw_combinations(around, 9)
    with pytest.raises(UserError, match="are possible besides those that a student was trained on"):
        draw_combinations(around, around.total)


def test_a_ladder_and_reserved_sets_are_drawn_around_combinations(tiny_catalog: Catalog) -> None:
    draw = Draw(tiny_catalog.pool("all"), "all", 2, seed=0)
    for drawn in (draw_ladder, partial(draw_reserved, share=0.9)):
        plain = drawn(draw, 6)
        gone = plain[2].id
        around = drawn(replace(draw, without=frozenset({gone})), 6)

        assert gone not in {c.id for c in around}
        assert [c for c in around if c in plain] == [c for c in plain if c.id != gone]
