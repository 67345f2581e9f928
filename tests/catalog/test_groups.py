"""Groups of a partition: how combinations are composed, nested partitions, and partitions.yaml."""

from collections import Counter
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.catalog.catalog import SETTINGS, Catalog, Side
from skillmix.catalog.combinations import (
    EVALUATION_SHARE,
    Draw,
    all_combinations,
    draw_combinations,
    draw_ladder,
    draw_reserved,
    is_reserved,
    subsets_of,
    training_draw,
)
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.hashing import short_id
from tests.catalog.cells import cells_catalog, cells_folder

NESTED = "nested:1"
SKILLS = ("a1", "a2", "a3", "b1", "b2", "c1", "d1")
FIGURES = {skill: skill[0] for skill in SKILLS}


@pytest.mark.parametrize(
    ("catalog", "partition", "hash_of_draws"),
    [
        ("paper", None, "2e683a2c9712c01c"),
        ("paper", "random-skills:3", "523ab815bacdacc0"),
        ("verifiable", None, "2b8d0ee65c28d4ec"),
        ("verifiable", "random-skills:3", "c19dbb18ad09f4ea"),
    ],
)
def test_draws_of_two_sides_are_those_of_runs_on_disk(catalog: str, partition: str | None, hash_of_draws: str) -> None:
    pools = load_catalog(catalog).pools(partition=partition)
    drawn = []
    for setting, side in pools:
        for k in (1, 2, 4):
            draw = Draw(side, setting, k, 5)
            drawn.append([c.id for c in draw_combinations(draw, 40)])
            drawn.append([c.id for c in draw_combinations(training_draw(draw, pools), 40)])
            drawn.append([c.id for c in draw_ladder(draw, 20)])

    assert [setting for setting, _ in pools] == list(SETTINGS)
    assert short_id(drawn) == hash_of_draws


@pytest.mark.parametrize("one", [None, frozenset({"a1", "b2", "d1"}), frozenset({"c1"}), frozenset[str]()])
@pytest.mark.parametrize("figures", [{}, FIGURES])
@pytest.mark.parametrize("k", range(1, 6))
def test_the_sets_of_a_side_are_numbered_without_gaps(
    k: int, figures: dict[str, str], one: frozenset[str] | None
) -> None:
    side = Side(SKILLS, ("t",), one=one, one_of_each=figures)
    allowed = {
        frozenset(skills)
        for skills in combinations(SKILLS, k)
        if (one is None or len(one.intersection(skills)) == 1)
        and (not figures or len({figures[s] for s in skills}) == k)
    }

    subsets = subsets_of(side, k)
    sets = [subsets.at(rank) for rank in range(subsets.total)]

    assert subsets.total == len(allowed) == Draw(side, "all", k, 0).total
    assert set(map(frozenset, sets)) == allowed
    assert [subsets.rank_of(skills) for skills in sets] == list(range(subsets.total))
    assert all(side.holds(skills) for skills in sets)
    assert (k <= side.most_skills) == bool(allowed)


def test_a_set_that_a_side_does_not_allow_has_no_number() -> None:
    side = Side(SKILLS, ("t",), one=frozenset({"d1"}), one_of_each=FIGURES)

    assert subsets_of(side, 2).rank_of(["a1", "d1"]) is not None
    assert [subsets_of(side, 2).rank_of(s) for s in (["a1", "a2"], ["a1", "b1"], ["d1", "x"], ["d1"])] == [None] * 4


@pytest.mark.parametrize("seed", range(12))
def test_a_nested_partition_sorts_cells_by_what_is_new_about_them(tmp_path: Path, seed: int) -> None:
    catalog = cells_catalog(tmp_path, figures=18, words=8, kinds=3, topics=24)
    partition = catalog.partition(f"nested:{seed}")
    cells = {name: {(s.figure, s.word) for s in map(catalog.skill, partition.side(name).skills)} for name in _CELLS}

    assert sum(map(len, cells.values())) == len(catalog.skills) == len(partition.side("all").skills)
    composed = cells["train"] | cells["random-cells"]
    new_figures = {f for f, _ in cells["new-figures"] | cells["both-new"]}
    new_words = {w for _, w in cells["new-words"] | cells["both-new"]}
    assert (len(new_figures), len(new_words)) == (6, 6)
    assert not new_figures.intersection(f for f, _ in composed) and not new_words.intersection(w for _, w in composed)
    assert len(cells["train"]) == len(cells["random-cells"]) == 36
    for column, count in ((0, 12), (1, 18)):
        kept = Counter(cell[column] for cell in cells["train"])
        assert len(kept) == count and max(kept.values()) - min(kept.values()) <= 1
    assert partition.held_out == partition.side("random-cells")
    assert len(partition.train.topics) == 12 and partition.held_out_topics.isdisjoint(partition.train.topics)
    assert all(set(partition.side(name).topics) == partition.held_out_topics for name in _CELLS[1:])


_CELLS = ("train", "random-cells", "new-words", "new-figures", "both-new")


def test_nested_partitions_differ_by_seed_and_do_not_depend_on_the_order_of_the_file(tmp_path: Path) -> None:
    folder = Path(cells_folder(tmp_path / "cells"))
    before = load_catalog(str(folder))
    skills = yaml.safe_load((folder / "skills.yaml").read_text(encoding="utf-8"))
    (folder / "skills.yaml").write_text(yaml.safe_dump(skills[::-1]), encoding="utf-8")
    after = load_catalog(str(folder))

    for name in before.partition(NESTED).settings:
        assert set(before.partition(NESTED).side(name).skills) == set(after.partition(NESTED).side(name).skills)
    assert len({before.partition(f"nested:{seed}").train.skills for seed in range(8)}) > 4


def test_a_nested_partition_needs_figures_words_and_enough_of_both(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs skills with a figure and a word, and 104 skills of catalog 'paper'"):
        load_catalog("paper").partition(NESTED)
    with pytest.raises(UserError, match="do not allow the partition nested:1"):
        cells_catalog(tmp_path, figures=4, kinds=4).partition(NESTED)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_a_combination_uses_no_figure_twice_and_one_new_figure_beside_trained_ones(tmp_path: Path, k: int) -> None:
    catalog = cells_catalog(tmp_path)
    partition = catalog.partition(NESTED)
    new, trained = partition.side("new-figures").skills, partition.train.skills
    for setting, side in catalog.pools(partition=NESTED):
        if k > side.most_skills:
            continue
        drawn = draw_combinations(Draw(side, setting, k, 0), min(300, Draw(side, setting, k, 0).total))
        assert all(len({catalog.skill(s).figure for s in c.skills}) == k for c in drawn)
        assert all(set(c.skills) <= set(side.skills) and c.topic in side.topics for c in drawn)
        if setting == "new-figure-beside-trained":
            assert all(sum(s in new for s in c.skills) == 1 for c in drawn)
            assert all(s in trained for c in drawn for s in c.skills if s not in new)


def test_draws_of_groups_are_prefixes_of_each_other_and_apart_from_training(tmp_path: Path) -> None:
    catalog = cells_catalog(tmp_path)
    pools = catalog.pools(partition=NESTED)
    for setting, side in pools:
        draw = Draw(side, setting, 2, 3)
        whole = draw_combinations(draw, draw.total)
        assert whole[: draw.total // 2] == draw_combinations(draw, draw.total // 2)
        assert len({c.id for c in whole}) == draw.total
        evaluated = {c.id for c in whole[: int(EVALUATION_SHARE * draw.total)]}
        for other, another in pools:
            training = all_combinations(training_draw(Draw(another, other, 2, 3), pools))
            assert evaluated.isdisjoint(c.id for c in training)


def test_ladders_and_reserved_draws_follow_the_rules_of_a_group(tmp_path: Path) -> None:
    catalog = cells_catalog(tmp_path)
    side = catalog.pool("new-figure-beside-trained", partition=NESTED)
    assert side.one is not None

    ladder = draw_ladder(Draw(side, "new-figure-beside-trained", 3, 0), 20)
    reserved = draw_reserved(Draw(side, "new-figure-beside-trained", 2, 0), 15, 0.3)

    assert all(side.holds(c.skills) for c in (*ladder, *reserved))
    assert all(is_reserved(c.skills, 0.3) for c in reserved)


def test_excluding_every_new_figure_leaves_nothing_to_draw(tmp_path: Path) -> None:
    catalog = cells_catalog(tmp_path)
    names = catalog.partition(NESTED).side("new-figures").skills
    side = catalog.pool("new-figure-beside-trained", partition=NESTED, exclude=names)

    with pytest.raises(UserError, match="k = 2 is not possible"):
        draw_combinations(Draw(side, "new-figure-beside-trained", 2, 0), 1)


def test_a_large_catalog_is_drawn_without_counting_through_it(tmp_path: Path) -> None:
    catalog = cells_catalog(tmp_path, figures=18, words=8, kinds=3, topics=24)
    draw = Draw(catalog.pool("all", partition=NESTED), "all", 5, 0)

    assert draw.total == 8568 * 8**5 * 24
    assert len(set(islice(all_combinations(draw), 2000))) == 2000


def groups(tmp_path: Path, **further: Any) -> Catalog:
    """The catalog with these groups of its default partition."""
    folder = Path(cells_folder(tmp_path / "cells"))
    document = yaml.safe_load((folder / "partitions.yaml").read_text(encoding="utf-8"))
    document["partitions"]["kinds"]["groups"] = further
    (folder / "partitions.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return load_catalog(str(folder))


def test_a_partition_may_define_groups(tmp_path: Path) -> None:
    plain = cells_catalog(tmp_path)
    catalog = groups(
        tmp_path,
        mixed={"categories": ["kind 0"], "one": {"categories": ["kind 1"]}, "topics": ["topic 0"]},
        pair={"skills": ["figure 1 with 1a", "figure 3 with 1b"]},
    )
    partition = catalog.partition()
    mixed = catalog.pool("mixed")

    assert partition.settings == ("train", "held-out", "mixed", "pair", "all")
    assert mixed.one == frozenset(partition.held_out.skills) and mixed.topics == ("topic 0",)
    assert partition.side("pair").topics == partition.held_out.topics
    drawn = draw_combinations(Draw(mixed, "mixed", 3, 0), 50)
    assert all(sum(s in partition.held_out.skills for s in c.skills) == 1 for c in drawn)
    assert set(partition.side("all").skills) == {skill.name for skill in catalog.skills}
    assert plain.content_hash() != catalog.content_hash()
    assert load_catalog("paper").content_hash() == "d54eba9cda0ffdf5"


def test_faults_of_groups_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        groups(
            tmp_path,
            one={"categories": ["kind 2"], "topics": ["topik 1"]},
            two={"categories": ["kind 0"], "one": {"skills": ["figure 0 with 0a", "nothing"]}},
        )
    shown = caught.value.message

    assert "kinds, groups, one: there is no category 'kind 2'. Did you mean" in shown
    assert "there is no topic 'topik 1'. Did you mean \"topic 1\"?" in shown
    assert "kinds, groups, one: there is no skill" in shown
    assert "kinds, groups, two, one: there is no skill 'nothing'" in shown
    assert "kinds, groups, two: 'figure 0 with 0a' is in `one` and in another list" in shown


@pytest.mark.parametrize("name", ["train", "all", "Two words", "a--b", "12"])
def test_the_name_of_a_group_is_a_plain_word_of_its_own(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}' cannot be the name of a group"):
        groups(tmp_path, **{name: {"categories": ["kind 0"]}})


def test_an_unknown_group_gets_the_nearest_and_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nested:1 has no group 'new-figure'") as caught:
        cells_catalog(tmp_path).pool("new-figure", partition=NESTED)

    assert str(caught.value.hint).startswith('Did you mean "new-figures"')
