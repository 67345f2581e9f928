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


def where_the_time_went(case: Case) -> list[Row]:
    """The file of seconds again: each step's entries added up, then all steps."""
    document = json.loads((case.run.path / "seconds.json").read_text(encoding="utf-8"))
    names = [step["name"] for step in case.run.document["steps"] if step["name"] in document["steps"]]
    entries = {name: list(document["steps"][name].values()) for name in names}
    every = [entry for found in entries.values() for entry in found]
    if len(entries) > 1:
        entries["all"] = every
    order = ["writing", "grading", "saving", "validating", "training", "compiling", "loading", "waiting", "reading"]
    parts = [part for part in order if any(part in entry["seconds"] for entry in every)]
    rows: list[Row] = []
    for name, found in entries.items():
        seconds = {part: sum(entry["seconds"].get(part, 0.0) for entry in found) for part in parts}
        devices = [entry["device"] for entry in found if entry["device"]]
        share = sum(d["worked"] for d in devices) / sum(d["measured"] for d in devices) if devices else float("nan")
        device = devices[0]["name"] if devices else "–"
        rows.append({"step": name, **seconds, "sum": sum(seconds.values()), "device": device, "share": min(share, 1.0)})
    return rows


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
            "steps": run.steps_of(student),
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


CLAIMS: dict[str, Callable[[int, list[int]], bool]] = {
    "composition": lambda k, trained: k >= 2,
    "trained k": lambda k, trained: k in trained,
    "held-out": lambda k, trained: k >= 2,
    "larger k": lambda k, trained: k > max(trained),
    "efficiency": lambda k, trained: k >= 2,
    "control": lambda k, trained: k >= 2,
}
SETTINGS = {"trained k": "train", "held-out": "held-out"}


def compared(run: SecondRun, claim: str) -> list[tuple[str, str]]:
    """Who is compared with whom, as the documentation says."""
    trained = {student: told["k"] for student, told in run.models.items()}
    sizes = {student: (run.rows_of(student), run.steps_of(student)) for student in trained}
    singles = sorted((s for s, k in trained.items() if k == [1]), key=lambda s: sizes[s], reverse=True)
    richest = sorted(trained, key=lambda s: (max(trained[s]), len(trained[s]), sizes[s][0]), reverse=True)
    composed = [s for s in richest if max(trained[s]) >= 2]
    if claim == "composition" and not composed:
        return []
    if claim == "composition":
        groups = [[s for s in singles if _is_equal(sizes[s], sizes[composed[0]]) == e] for e in (True, False)]
        return [(group[0], composed[0]) for group in groups if group]
    if claim == "efficiency":
        pairs = [
            (sizes[b][1] > 1.05 * sizes[a][1], -max(trained[b]), sizes[a][0] - sizes[b][0], a, b)
            for a in trained
            for b in trained
            if 2 <= max(trained[a]) < max(trained[b]) and sizes[b][0] <= sizes[a][0]
        ]
        return [min(pairs)[3:]] if pairs else []
    seconds = {"control": singles, "trained k": richest}.get(claim, composed)[:1]
    return [(run.base_of(second), second) for second in seconds]


def _is_equal(sizes: tuple[int, int], others: tuple[int, int]) -> bool:
    return all(abs(a - b) <= 0.05 * max(a, b) for a, b in zip(sizes, others, strict=True))


def _claim_rows(run: SecondRun, claim: str) -> Iterable[Row]:
    for first, second in compared(run, claim):
        yield from _pair_rows(run, claim, first, second)


def _pair_rows(run: SecondRun, claim: str, first: str, second: str) -> Iterable[Row]:
    for grader in run.graders:
        for setting in (s for s in run.settings if s == SETTINGS.get(claim, s)):
            for k in (k for k in run.ks if CLAIMS[claim](k, run.models[second]["k"])):
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
