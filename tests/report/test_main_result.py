"""The sentence and the numbers of the first screen, on cells made by hand."""

from dataclasses import replace

import pytest

from skillmix.experiment.steps import Contrast
from skillmix.models.lineage import Lineage
from skillmix.models.lineage_files import DatasetFile
from skillmix.report.figures.scores import result_figure
from skillmix.report.figures.style import alternative_text
from skillmix.report.records import Report, RunFacts, by_key
from skillmix.scores.cells import Cell
from skillmix.scores.findings import findings, judge_planned
from skillmix.scores.sentences import MainResult, example_of
from tests.report.test_findings import WHO, cell, contender, lineage

FACTS = RunFacts(
    name="r",
    catalog=None,
    partition=None,
    seed=0,
    prompts=None,
    rules="default",
    exclude=(),
    students={},
    graders={"g": "rules:"},
    rounds={},
    generations=1,
    texts=0,
    missing=0,
)


def result_of(*cells: Cell) -> MainResult:
    names = dict.fromkeys(c.key.student for c in cells)
    found = findings([contender(name, LINEAGES.get(name)) for name in names], {c.key: c for c in cells})
    return Report(runs=(FACTS,), cells=cells, findings=tuple(found)).result


LINEAGES = {"tuned": lineage(1)}


def test_a_difference_is_said_with_its_interval_and_its_verdict() -> None:
    result = result_of(cell("weak", 5, 40), cell("strong", 30, 40))

    assert result.headline == "strong earns full marks more often than weak"
    assert result.detail.startswith(
        "with 4 skills in one text, strong earns full marks on 75% of combinations and weak on 12%, a difference of "
    )
    assert "(95% interval" in result.detail and result.detail.endswith("; a gain, p < .001.")
    assert result.evidence == "Setting held-out, grader g, 40 combinations."
    assert [n.value for n in result.numbers] == ["+62 points", "25 of 40", "80"]
    assert "weak does better on 0, neither on 15" in result.numbers[1].label


def test_a_loss_of_the_second_student_is_called_a_loss() -> None:
    result = result_of(cell("first", 30, 40), cell("second", 5, 40))

    assert result.headline == "second earns full marks less often than first"
    assert result.detail.endswith("; a loss, p < .001.")
    assert [n.value for n in result.numbers][:2] == ["−62 points", "0 of 40"]


def test_the_first_k_with_a_difference_leads_and_the_other_k_are_named() -> None:
    cells = [cell("a", 10, 40, k=k) for k in (1, 2, 3)]
    cells += [cell("b", n, 40, k=k) for k, n in ((1, 17), (2, 11), (3, 38))]

    result = result_of(*cells)

    assert result.k == 1
    assert "p = .016 after correction for 2 comparisons." in result.detail  # at k = 2 one combination differs
    assert "A difference is found at k = 1, 3, but not at k = 2." in result.evidence


def test_equal_students_have_no_difference() -> None:
    result = result_of(cell("a", 20, 40), cell("b", 21, 40))

    assert result.headline == "No clear difference was found between b and a"
    assert "b earns full marks on 53% of combinations and a on 50%, a difference of 3 points (" in result.detail
    assert "more combinations at each k would be needed to decide." in result.evidence


def test_a_third_student_does_not_change_the_verdict_on_two_others() -> None:
    cells = [cell(name, n, 16, k=1) for name, n in (("base", 0), ("other", 6), ("third", 1))]

    assert result_of(*cells).sentence == result_of(*cells[:2]).sentence
    assert result_of(*cells).detail.endswith("; a gain, p = .031.")


def test_too_few_combinations_decide_nothing() -> None:
    result = result_of(cell("a", 0, 5), cell("b", 5, 5))

    assert result.headline == "Too few combinations to tell b and a apart"
    assert "(too few combinations for an interval)" in result.detail


def test_one_student_has_its_scores_by_k() -> None:
    result = result_of(cell("s", 30, 40, k=1), cell("s", 10, 40, k=2), cell("s", 0, 40, k=3))

    assert result.headline == "s earns full marks on 75% of combinations with 1 skill in one text, and on 0% with 3"
    assert result.detail.startswith("75% with 1 (95% interval 60 to 86), 25% with 2 (14 to 40), 0% with 3 (0 to 9)")
    assert [n.value for n in result.numbers] == ["75%", "0%", "120"]


def test_one_student_at_one_k_has_one_try_beside_the_best() -> None:
    result = result_of(cell("s", 30, 40, k=2))

    assert result.headline == "s earns full marks on 75% of combinations with 2 skills in one text"
    assert [n.label for n in result.numbers[:2]] == [
        "of combinations have a text with full marks, k = 2",
        "of single texts have full marks, k = 2",
    ]


def test_without_a_graded_text_the_page_says_so() -> None:
    assert Report(runs=(), cells=()).result.sentence == "No text is graded yet"


@pytest.mark.parametrize(
    ("successes", "headline"),
    [
        ({"base": 2, "m1": 2, "m12": 20, "m123": 70}, "Training on texts that combine skills teaches more"),
        ({"base": 0, "m1": 0, "m12": 0, "m123": 0}, "Training on single skills alone does not teach"),
    ],
)
def test_a_supported_finding_leads_and_the_control_leads_only_alone(successes: dict[str, int], headline: str) -> None:
    cells = [cell(name, n, 100) for name, n in successes.items()]
    found = findings([contender(name, told) for name, told in WHO.items()], {c.key: c for c in cells})

    result = Report(runs=(FACTS,), cells=tuple(cells), findings=tuple(found)).result

    assert result.headline.startswith(headline)
    if successes["m123"]:
        assert "m123 earns full marks on 70% of combinations and m1 on 2%, a difference of 68 points" in result.detail
        assert result.numbers[1].value == "68 of 100"


def test_several_trainings_have_no_shares_of_one_student() -> None:
    told = {"base": None, "m12": lineage(1, 2)}
    students, cells = [], []
    for seed in range(4):
        for name, training in told.items():
            own = replace(training, seed=seed) if training else None
            students.append(contender(name, own, run=f"r{seed}", seed=seed))
            cells.append(cell(name, 5 if own is None else 60 + seed, 100, run=f"r{seed}"))
    found = findings(students, by_key(cells))

    result = Report(runs=(FACTS,), cells=tuple(cells), findings=tuple(found)).result

    assert "with 4 skills in one text, m12 against base: a difference of 56 points (95% interval" in result.detail
    assert result.numbers[1].value == "4 of 4" and result.numbers[1].label.startswith("seeds on which m12 does better")
    assert result.evidence.startswith("4 trainings, setting held-out")


def test_a_planned_comparison_counts_the_graded_texts_of_evaluations() -> None:
    cells = [cell("weak", 5, 40), cell("strong", 30, 40), cell("strong", 10, 40, k=2)]
    plan = Contrast(student="strong", setting="held-out", k=4, against="weak")
    planned = judge_planned([plan], [contender("weak"), contender("strong")], {c.key: c for c in cells})

    result = Report(runs=(FACTS,), cells=tuple(cells), contrasts=tuple(planned)).result

    assert result.headline == "Supported: strong does better than weak"
    assert [n.value for n in result.numbers] == ["75%", "12%", "120"]
    assert result.numbers[-1].label == "texts on 80 combinations of skills and a topic, graded by g"


def test_the_figure_of_a_planned_comparison_shows_single_texts_like_its_sentence() -> None:
    both = ((True,) * 7, (False,) * 7)
    cells = [
        replace(cell(name, n, 40), points=(both,) * n + ((both[1],) * 2,) * (40 - n), statuses=(("fine",) * 2,) * 40)
        for name, n in WINS.items()
    ]
    plan = Contrast(student="strong", setting="held-out", k=4, against="weak")
    planned = judge_planned([plan], [contender("weak"), contender("strong")], {c.key: c for c in cells})
    report = Report(runs=(FACTS,), cells=tuple(cells), contrasts=tuple(planned))

    (drawing,) = result_figure(report)
    figure = drawing.draw(report)

    assert report.result.detail.startswith("with 4 skills in one text, strong earns full marks in 38% of its texts and")
    assert figure is not None and drawing.caption == "Share of texts with full marks, one try; bars are 95% intervals."
    assert alternative_text(figure) == ".38 at strong; .06 at weak."


WINS = {"weak": 5, "strong": 30}


def test_the_first_screen_says_what_each_student_was_trained_on() -> None:
    result = result_of(cell("base", 5, 40), cell("control", 30, 40), cell("unknown", 30, 40))
    own = replace(lineage(1, 2), datasets=("d1",), rows=1000, requests="one")
    data = DatasetFile(kind="dataset", name="any", hash="d1", k=[1, 2], combinations=[])

    def sentence(lineages: dict[str, Lineage]) -> str:
        keyed = {("r", name): known for name, known in lineages.items()}
        return replace(result, students=(("r", "control"), ("r", "base"))).with_training(keyed, [data]).training

    about = "1,000 conversations, k = 1, 2, each request names only one skill"
    assert sentence({"control": own}) == f"control was trained on the data set any ({about}); base was not tuned."
    assert sentence({"control": replace(own, datasets=("gone",))}).startswith(f"control was trained on {about}; ")
    assert sentence({}) == ""


def test_the_example_is_the_first_combination_where_only_the_better_student_has_full_marks() -> None:
    weak, strong = cell("weak", 5, 40), cell("strong", 30, 40)
    result, cells = result_of(weak, strong), {c.key: c for c in (weak, strong)}

    found = example_of(result, cells)
    among = example_of(result, cells, among={weak.combinations[7].id, weak.combinations[0].id})
    same = example_of(result, cells, among={weak.combinations[3].id})

    assert found is not None and among is not None and same is not None
    assert [found.combination, among.combination] == [weak.combinations[5], weak.combinations[7]]
    assert found.missed == {strong.key: (), weak.key: (*weak.combinations[5].skills, "topic", "sense", "length")}
    assert (
        found.about
        == "First tries on the first combination where only strong has full marks: s1 and s2 and s3 and s0, on t5."
    )
    assert same.about == "First tries on the first combination: s0 and s3 and s1 and s2, on t3."
    assert example_of(result, {weak.key: weak}) is None
