"""Definitions of terms and skills."""

from dataclasses import replace

from skillmix.catalog.files import load_catalog
from skillmix.report.page import TERMS, term_id
from skillmix.report.read import definitions_of


def test_a_skill_has_its_definition_example_category_and_side() -> None:
    catalog = load_catalog("paper")
    partition = catalog.partition("category")
    trained, held_out = partition.train.skills[0], partition.held_out.skills[0]

    found = definitions_of([("run", catalog, "category")], [trained, held_out, "no such skill"])

    assert list(found) == sorted([trained, held_out])
    assert (found[trained].side, found[held_out].side) == ("train", "held-out")
    skill = catalog.skill(trained)
    assert (found[trained].definition, found[trained].example) == (skill.definition, skill.example)


def test_a_side_that_differs_between_runs_names_the_runs() -> None:
    catalog = load_catalog("paper")
    partition = catalog.partition("category")
    turned = replace(catalog, partitions=(replace(partition, train=partition.held_out, held_out=partition.train),))
    name = partition.train.skills[0]

    found = definitions_of([("a", catalog, "category"), ("b", turned, "category"), ("c", catalog, "gone")], [name])

    assert found[name].side == "train in a, held-out in b, unknown side in c"


def test_terms_have_addresses_of_their_own() -> None:
    assert len(set(map(term_id, TERMS))) == len(TERMS)
    assert all(meaning.endswith(".") for meaning in TERMS.values())
