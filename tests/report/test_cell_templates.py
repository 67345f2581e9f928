"""How far texts with full marks are templates, and what templates alone would earn."""

from skillmix.catalog.combinations import Combination
from skillmix.catalog.files import load_catalog
from skillmix.datasets.corpus import corpus_of, distinct_share
from skillmix.grading.answers import plain_answer
from skillmix.grading.points import Ballot, Points, StudentText
from skillmix.report.archive import CodeEvidence
from skillmix.report.read import cell_texts, template_baselines
from skillmix.report.records import CellTexts
from skillmix.scores.cells import Cell, CellKey

FULL: Points = (True,) * 4
KEY = CellKey("r", "s", "g", "all", 1)


def templates(*texts: tuple[str, str, str | None], points: Points = FULL) -> CellTexts:
    """The counts of a cell of texts, each with its combination and its masked evidence."""
    ids = list(dict.fromkeys(combination for combination, _, _ in texts))
    combinations = {name: Combination(name, ("simile",), name) for name in ids}
    written = [
        StudentText("s", combinations[name], number, plain_answer(text)) for number, (name, text, _) in enumerate(texts)
    ]
    evidence = {
        text.conversation: CodeEvidence((masked,), (), {}, (masked,))
        for text, (_, _, masked) in zip(written, texts, strict=True)
        if masked is not None
    }
    decided = [(Ballot(text, "g", 1, ()), points) for text in written]
    planned = tuple((points,) * len(texts) for _ in ids)
    cell = Cell(KEY, tuple(combinations.values()), planned, ((None,) * len(texts),) * len(ids))
    (counted,) = cell_texts([cell], decided, evidence, None, all_generations=False)
    return counted


def test_the_same_words_on_another_combination_are_a_template() -> None:
    counted = templates(
        ("a", "The soup is as hot as a stove.", "as hot as a _"),
        ("b", "The bus is as hot as a bus.", "as hot as a _"),
        ("c", "The cat is as soft as a rug.", "as soft as a rug"),
    )

    assert (counted.full_marks, counted.repeated) == (3, 2)


def test_several_tries_on_one_combination_are_no_template() -> None:
    assert templates(("a", "One.", "as _"), ("a", "Two.", "as _")).repeated == 0


def test_without_evidence_of_code_the_same_words_are_unknown_and_distinct_4_is_known() -> None:
    counted = templates(("a", "We saw the old bus.", None), ("b", "We saw the old cat.", None))

    assert counted.repeated is None
    assert counted.distinct_4 == 3 / 4


def test_texts_without_full_marks_do_not_count() -> None:
    counted = templates(("a", "We saw the old bus.", "_"), points=(False, True, True, True))

    assert (counted.full_marks, counted.repeated, counted.distinct_4) == (0, None, None)


def test_short_texts_have_no_run_of_four_words() -> None:
    assert distinct_share(corpus_of(["We saw it."]), 4) is None


def test_the_baseline_is_that_of_the_combinations_of_the_run() -> None:
    catalog = load_catalog("verifiable")
    combination = Combination("x", ("simile", "asking politely"), "Night trains")
    cell = Cell(CellKey("r", "s", "g", "all", 2), (combination,), ((None,),), ((None,),))

    (baseline,) = template_baselines("r", catalog, [cell, cell])

    assert (baseline.setting, baseline.k, baseline.combinations) == ("all", 2, 1)
    assert baseline.full_marks == {"fixed": 1.0, "slot": 1.0}
    assert baseline.woven == {"fixed": 0.0, "slot": 0.0}
    assert list(template_baselines("r", load_catalog("paper"), [cell])) == []
    assert list(template_baselines("r", None, [cell])) == []
