"""Tables of findings, lineage and data, worked out a second time, row by row."""

import json
from collections.abc import Callable, Iterable
from importlib import resources

from scipy import stats

from tests.report import second_way
from tests.report.expected_scores import Case, Row
from tests.report.second_run import SecondRun, mean


def data_yield(case: Case) -> list[Row]:
    return [
        {"data set": name, "writer": writer, "k": k, "written": n, "full marks": full, "share": full / n}
        for name in case.run.datasets
        for writer, k, n, full in case.run.yields(name)
    ]


def lineage(case: Case) -> list[Row]:
    run = case.run
    return [
        {
            "student": student,
            "base": told["base"]["spec"],
            "data": ", ".join(run.data_of(student)),
            "trained on": run.trained_on(student),
            "conversations": run.rows_of(student),
            "combinations": len(set(told["combinations"])),
            "steps": told["recipe"].get("steps_taken", told["recipe"]["steps"]),
            "partition": told["partition"],
            "seed": told["seed"],
            "weights": "adapter" if told["adapter"] else "all weights",
        }
        for student, told in run.models.items()
    ]


def paper_table(case: Case, name: str) -> list[Row]:
    """The committed file again, without going through the package's layout."""
    file = resources.files("skillmix.data").joinpath("published.json")
    told = json.loads(file.read_text(encoding="utf-8"))["tables"][name.removeprefix("paper-").replace("-", "_")]
    over = [f"k = {k}" for k in told["k"]] if "k" in told else told["settings"]
    names = [f"{o}, {m.replace('_', ' ')}" for o in over for m in told["metrics"]]
    rows = []
    for given in told["rows"]:
        flat = [value for group in given["values"] for value in group]
        heads = {h.replace("_", " "): given[h] for h in ("model", "setting", "grader", "trained_on") if h in given}
        numbers = [float("nan") if v is None else v for v in flat]
        rows.append({**heads, **dict(zip(names, numbers, strict=True))})
    return rows


def findings(case: Case) -> list[Row]:
    rows = [row for claim in CLAIMS for row in _claim_rows(case.run, claim)]
    for claim in CLAIMS:
        for grader in case.run.graders:
            family = [row for row in rows if (row["claim"], row["grader"]) == (claim, grader)]
            for row, p in zip(family, second_way.holm([row["p"] for row in family]), strict=True):
                row["p, corrected"] = p
    return rows


CLAIMS: dict[str, Callable[[int, int], bool]] = {
    "held-out": lambda k, most: k >= 2,
    "larger k": lambda k, most: k > most,
    "efficiency": lambda k, most: k >= 2,
    "control": lambda k, most: k >= 3,
}


def compared(run: SecondRun, claim: str) -> tuple[str, str] | None:
    """Who is compared with whom, as the documentation says."""
    trained = {student: told["k"] for student, told in run.models.items()}
    if claim == "control":
        second = next((s for s, k in trained.items() if k == [1]), None)
        return (run.base_of(second), second) if second else None
    if claim == "efficiency":
        pairs = [
            (-max(trained[b]), run.rows_of(a) - run.rows_of(b), a, b)
            for a in trained
            for b in trained
            if 2 <= max(trained[a]) < max(trained[b]) and run.rows_of(b) <= run.rows_of(a)
        ]
        return min(pairs)[2:] if pairs else None
    composed = [(max(k), len(k), run.rows_of(s), s) for s, k in trained.items() if max(k) >= 2]
    return (run.base_of(max(composed)[3]), max(composed)[3]) if composed else None


def _claim_rows(run: SecondRun, claim: str) -> Iterable[Row]:
    pair = compared(run, claim)
    if pair is None:
        return
    first, second = pair
    for grader in run.graders:
        for setting in run.settings if claim != "held-out" else ["held-out"]:
            for k in (k for k in run.ks if CLAIMS[claim](k, max(run.models[second]["k"]))):
                differences = run.differences(first, second, grader, setting, k)
                if not differences:
                    continue
                low, high = second_way.difference_interval(differences)
                moved = [d for d in differences if d]
                up = sum(d > 0 for d in moved)
                yield {
                    "claim": claim,
                    "students": f"{second} − {first}",
                    "trained on": f"{run.trained_on(second)} − {run.trained_on(first)}",
                    "grader": grader,
                    "setting": setting,
                    "k": k,
                    "difference": mean(differences),
                    "difference low": low,
                    "difference high": high,
                    "p": stats.binomtest(up, len(moved)).pvalue if moved else 1.0,
                    "p, corrected": None,
                    "combinations": len(differences),
                    "runs": 1,
                    "partitions": 1,
                }
