"""The wording of results: `tests/golden/sentences.txt` has a sentence of every kind; `make golden` writes it again."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from skillmix.experiment.steps import Contrast
from skillmix.scores.cells import Cell
from skillmix.scores.comparisons import Change, FormatEffect, PairRow, ValidTexts
from skillmix.scores.findings import Finding, findings, judge_planned
from skillmix.scores.scoring import ComparableStudent
from skillmix.scores.sentences import contrast_result, finding_sentence, format_warnings, main_result, shown_lines
from skillmix.scores.statistics.intervals import ShareDifference
from skillmix.scores.status import Status
from tests.report.test_findings import WHO, cell, contender, lineage
from tests.test_golden import compare

FULL = {"base": 5, "m1": 6, "m12": 20, "m123": 60}


def world(successes: Mapping[str, int], n: int, **more: int | str) -> tuple[list[Cell], list[Finding]]:
    cells = [cell(name, count, n, **more) for name, count in successes.items()]  # type: ignore[arg-type]
    return cells, judge([contender(name, WHO.get(name)) for name in successes], cells)


def judge(students: Iterable[ComparableStudent], cells: Iterable[Cell]) -> list[Finding]:
    return findings(list(students), {c.key: c for c in cells})


def seeds(rates: Mapping[int, int]) -> list[Finding]:
    students, cells = [], []
    for seed, count in rates.items():
        run = f"r{seed}"
        students += [contender("base", run=run), contender("m123", lineage(1, 2, 3, seed=seed), run=run, seed=seed)]
        cells += [cell("base", 5, 100, run=run), cell("m123", count, 100, run=run)]
    return judge(students, cells)


def claims() -> dict[str, list[Finding]]:
    """Findings of every verdict, and of every remark beside one."""
    at_two_k = [cell(name, n, 200, k=k) for k, name, n in ((4, "base", 20), (4, "m123", 60), (2, "base", 60))]
    pair = {"base": None, "m123": lineage(1, 2, 3)}
    tuned = [contender(name, told) for name, told in pair.items()]
    untaught = [cell(name, 1, 100, k=k, setting=s) for k, s in ((4, "held-out"), (3, "train")) for name in pair]
    practised = [contender("m1", lineage(1)), *tuned]
    unmatched = [contender("m1", lineage(1, rows=500, steps=None)), *tuned]
    explained = [cell(name, n, 100) for name, n in (("base", 10), ("m1", 50), ("m123", 51))]
    return {
        "supported": world(FULL, 200)[1],
        "not supported": world({"base": 60, "m1": 120, "m12": 60, "m123": 20}, 200)[1],
        "too little data": world({"base": 2, "m1": 4, "m12": 3, "m123": 4}, 10)[1],
        "a gain at one k and a loss at another": judge(tuned, [*at_two_k, cell("m123", 20, 200, k=2)]),
        "not taught": judge(tuned, untaught),
        "practice explains a gain": judge(practised, explained),
        "practice that does not match": judge(unmatched, explained),
        "two seeds": seeds({0: 40, 1: 10}),
        "three seeds that differ": seeds({0: 40, 1: 10, 2: 70}),
        "three seeds that agree": seeds({0: 40, 1: 42, 2: 38}),
    }


def first_screens() -> dict[str, tuple[list[Cell], list[Finding]]]:
    """Cells and findings of every kind of first screen."""
    by_k = [cell(name, n, 40, k=k) for name, n, k in (("a", 10, 1), ("a", 10, 2), ("b", 17, 1), ("b", 11, 2))]
    partitions = [
        cell(name, count + shift, 40, setting=f"all under nested:{number}")
        for number, shift in enumerate((0, 3, 1))
        for name, count in (("a", 5), ("b", 20))
    ]
    return {
        "a gain": world({"weak": 5, "strong": 30}, 40),
        "a loss": world({"first": 30, "second": 5}, 40),
        "within noise": world({"a": 20, "b": 21}, 40),
        "too few": world({"a": 0, "b": 5}, 5),
        "a difference at one k": (by_k, judge([contender("a"), contender("b")], by_k)),
        "a claim": world(FULL, 100),
        "the control": world({"base": 0, "m1": 0}, 100),
        "several partitions": (partitions, judge([contender("a"), contender("b")], partitions)),
        "one student": ([cell("s", 30, 40, k=1), cell("s", 10, 40, k=2)], []),
        "one student at one k": ([cell("s", 30, 40, k=2)], []),
        "nothing": ([], []),
    }


def test_the_sentences_about_results_are_those_of_the_committed_file() -> None:
    blocks = []
    for name, found in claims().items():
        lines = [f"{f.claim}: {finding_sentence(f)}" for f in found if f.claim != "planned"]
        blocks.append(f"## Findings: {name}\n" + "\n".join(lines))
    for name, (cells, found) in first_screens().items():
        main = main_result(cells, found)
        numbers = [f"{n.value} ({n.interval}) {n.label}" for n in main.numbers]
        blocks.append(f"## First screen: {name}\n" + "\n".join([main.sentence, main.evidence, *numbers]))

    students = [contender("weak"), contender("strong")]
    cells = [cell("weak", 5, 40), cell("strong", 30, 40), cell("strong", 10, 40, k=2), cell("weak", 8, 40, k=2)]
    plan = Contrast(student="strong", setting="held-out", k=4, against="weak")
    leads = {
        "": plan,
        "training teaches it": plan.model_copy(update={"student": "weak", "against": "strong"}),
        "it is no worse": plan.model_copy(update={"k": 2}),
    }
    for claim, lead in leads.items():
        words = {"claim": claim, "condition": "Words were composed."} if claim else {}
        plans = [lead.model_copy(update=words)]
        planned = judge_planned([*plans, plan], students, {c.key: c for c in cells})
        main = contrast_result(planned, cells)
        blocks.append(f"## Planned comparison: {planned[0].verdict}\n{main.sentence}\n{main.evidence}")

    row = PairRow("rules", "all", 1, 0.05, 0.81, 0.76, 0.6, 0.86, 0.01, 0.02, 40, 30, 10, 0, 0, "a gain", 2)
    change = Change("r", "tuned", "base", (1,), row)
    few, many = ValidTexts(valid=1, combinations=1, written=40), ValidTexts(valid=40, combinations=40, written=40)
    changes = [
        change,
        replace(change, row=replace(row, k=2, setting="train", low=-0.02, verdict="within noise")),
        replace(change, format=FormatEffect(few, many, None, "hides skill")),
        replace(change, format=FormatEffect(many, many, ShareDifference(0.02, -0.05, 0.09), "explains")),
    ]
    blocks.append("## Tuned students\n" + "\n".join(shown_lines(changes, run="quick")))
    cut = replace(cell("base", 1, 4), statuses=(("fine",), ("no marker",), ("empty",), ("fine",)), cuts=((True,),) * 4)
    blocks.append("## Format before skill\n" + "\n".join(format_warnings([cut])))
    statuses = [
        Status(4, 0, 0, 0, 0.0),
        Status(0, 9, 0, 0, 0.0),
        Status(3, 0, 0, 0, 1.5, unpriced={"openai:m": 1}),
        Status(3, 0, 0, 0, 0.0, unpriced={"imported": 2}),
    ]
    blocks.append("## Cost so far\n" + "\n".join(status.cost_line() for status in statuses))

    compare("sentences.txt", "\n\n".join(blocks) + "\n")
