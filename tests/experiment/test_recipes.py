"""Which texts make up a set: unions, nested sizes, shares, and the paper's constraint."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmix.errors import UserError
from skillmix.experiment.recipes import DataRecipe, draw_set, plain_recipe, recipe_named

Texts = list[tuple[str, int]]
TEXTS = st.lists(st.integers(1, 4), max_size=60).map(lambda ks: [(f"text {n}", k) for n, k in enumerate(ks)])


def members(recipe: DataRecipe, texts: Texts) -> set[str]:
    return {texts[place][0] for place in draw_set(recipe, texts)}


@given(TEXTS)
def test_a_mixture_is_the_union_of_its_parts(texts: Texts) -> None:
    parts = [members(recipe_named(f"D({k})"), texts) for k in (1, 2, 3)]

    assert members(recipe_named("D(1,2,3)"), texts) == set().union(*parts)
    assert sum(map(len, parts)) == len(members(recipe_named("D(1,2,3)"), texts))


@given(TEXTS, st.data())
def test_a_smaller_set_is_part_of_a_larger_one_whatever_else_there_is(texts: Texts, data: st.DataObject) -> None:
    known = [text for text in texts if text[1] < 4]
    large = data.draw(st.integers(0, len(known)))
    small = data.draw(st.integers(0, large))
    if small == 0:
        return

    inner = members(recipe_named("D(1,2,3)", size=small), texts)
    outer = members(recipe_named("D(1,2,3)", size=large), texts)

    assert inner <= outer
    assert (len(inner), len(outer)) == (small, large)
    # The order of choice belongs to each text: fewer candidates leave the others in their order.
    assert inner & outer == members(recipe_named("D(1,2,3)", size=small), [t for t in texts if t[0] in outer])


@given(TEXTS, st.permutations([1, 2, 3]), st.data())
def test_shares_are_kept_to_and_sizes_are_nested(texts: Texts, parts: list[int], data: st.DataObject) -> None:
    shares = dict(zip((1, 2, 3), map(float, parts), strict=True))
    sets = []
    for size in range(1, len(texts) + 1):
        try:
            sets.append(members(plain_recipe((1, 2, 3), size=size, shares=shares), texts))
        except UserError:
            break
    for smaller, larger in pairwise(sets):
        assert smaller < larger
    ks = dict(texts)
    for chosen in sets:
        counts = Counter(ks[text] for text in chosen)
        assert all(abs(counts[k] - len(chosen) * share / 6) < 1.5 for k, share in shares.items())


@given(TEXTS, st.integers(1, 60))
def test_the_ablation_has_fewer_compounds_than_there_are_pairs_or_is_refused(texts: Texts, size: int) -> None:
    counts = Counter(k for _, k in texts)
    possible = counts[1] + min(counts[2] + counts[3], max(0, counts[2] - 1))
    recipe = recipe_named("ablation", size=size)
    if size > possible:
        with pytest.raises(UserError, match=r"only \d+ qualify"):
            draw_set(recipe, texts)
        return

    chosen = draw_set(recipe, texts)

    drawn = Counter(texts[place][1] for place in chosen)
    assert len(chosen) == size
    assert drawn[4] == 0
    assert drawn[2] + drawn[3] < max(1, counts[2]) or drawn[2] + drawn[3] == 0
    if size > 1:
        assert set(draw_set(recipe_named("ablation", size=size - 1), texts)) <= set(chosen)


def test_the_ablation_of_the_paper_has_8000_texts() -> None:
    texts = [(f"{k}-{n}", k) for k, count in ((1, 4077), (2, 6277), (3, 3603)) for n in range(count)]

    drawn = Counter(texts[place][1] for place in draw_set(recipe_named("ablation"), texts))

    assert drawn.total() == 8000
    assert drawn[2] + drawn[3] < 6277
    assert min(drawn.values()) > 1500


def test_texts_keep_their_order() -> None:
    texts = [(str(n), 1) for n in range(100)]

    chosen = draw_set(recipe_named("D(1)", size=40), texts)

    assert chosen == sorted(chosen) != list(range(40))


@pytest.mark.parametrize("name", ["D()", "D(0)", "D(1,1)", "D(1,)", "d(1)", "D(1)x", "everything"])
def test_a_recipe_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="no recipe"):
        recipe_named(name)
