"""Tables of findings, lineage and data, worked out a second time, row by row."""

import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from importlib import resources

from tests.report.expected_scores import Case, Row, pair_rows
from tests.report.second_run import SecondRun


def data_yield(case: Case) -> list[Row]:
    return [
        {"data set": name, "writer": writer, "k": k, "written": n, "full marks": full, "share": full / n}
        for name in case.run.datasets
        for writer, k, n, full in case.run.yields(name)
    ]


def where_the_time_went(case: Case) -> list[Row]:
    """The seconds in the records of finished steps, then their sum."""
    with closing(sqlite3.connect(case.run.path / "run.sqlite")) as database:
        seconds = dict(database.execute("SELECT name, seconds FROM step WHERE result IS NOT NULL AND seconds > 0"))
    names = [
        step["name"] for step in case.run.document["steps"] if step["stage"] not in ("report", "annotate", "graders")
    ]
    rows: list[Row] = [{"step": name, "wall time": seconds[name]} for name in names if name in seconds]
    return [*rows, {"step": "all", "wall time": sum(row["wall time"] for row in rows)}] if len(rows) > 1 else rows


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
    """The committed file again, without going through the package's layout, and this run's rows in the same columns."""
    number = int(name.removeprefix("paper-table-"))
    file = resources.files("skillmix.data").joinpath("published.json")
    told = json.loads(file.read_text(encoding="utf-8"))["tables"][f"table_{ {1: 10, 3: 11}.get(number, number) }"]
    over = [f"k = {k}" for k in told["k"]] if "k" in told else told["settings"]
    metrics = [m for m in told["metrics"] if number not in (1, 3) or m != "all_skills"]
    heads = ["model", "trained_on", *(["setting"] if number != 6 else []), *(["grader"] if number == 5 else [])]
    rows: list[Row] = []
    for given in told["rows"]:
        row: Row = {"model": given["model"], "source": "paper"}
        row |= {h.replace("_", " "): given.get(h, "–") for h in heads if h != "model"}
        for o, group in zip(over, given["values"], strict=True):
            for m, value in zip(told["metrics"], group, strict=True):
                if m in metrics:
                    row[f"{o}, {m.replace('_', ' ')}"] = float("nan") if value is None else value
        rows.append(row)
    rows += _own_rows(case, number, [m.replace("_", " ") for m in metrics], over)
    return [_with_ends(row, rows) for row in rows]


def _own_rows(case: Case, number: int, metrics: list[str], over: list[str]) -> Iterable[Row]:
    run = case.run
    common = set(run.catalog.exclude.get("common", ()))
    for student in run.students:
        trained = run.trained_on(student) if student in run.models else "–"
        head: Row = {"model": student, "source": run.name, "trained on": trained}
        settings = ["train", "held-out", "all"] if number in (1, 3, 10, 11) else ["all"]
        for setting in [s for s in settings if s in run.settings and (number != 4 or student in run.models)]:
            for grader in run.graders if number == 5 else run.graders[:1]:
                row = head | ({"setting": setting} if number != 6 else {}) | ({"grader": grader} if number == 5 else {})
                for o in over:
                    k = 5 if number == 6 else int(o.removeprefix("k = "))
                    where = (student, grader, o if number == 6 else setting, k)
                    only = (lambda c: not common & set(c.skills)) if number == 6 else None
                    for metric in metrics:
                        found = run.summary(where, metric, only) if k in run.ks else {}
                        ends = zip(("", " low", " high"), ("value", "low", "high"), strict=True)
                        row |= {f"{o}, {metric}{end}": found.get(field, float("nan")) for end, field in ends}
                yield row


def _with_ends(row: Row, rows: list[Row]) -> Row:
    """The row with the columns of every row, in their order: ends of intervals where any row has them."""
    names = max(rows, key=len)
    known = {n for n in names if n in rows[0] or any(r.get(n, float("nan")) == r.get(n, float("nan")) for r in rows)}
    return {name: row.get(name, float("nan")) for name in names if name in known}


def calls_and_cost(case: Case) -> list[Row]:
    """Every call of the journal, by role, name and model, and their sum."""
    calls = case.run.calls.assign(name=lambda c: c["grader"].fillna(c["student"]))
    rows: list[Row] = []
    for (stage, name, model), group in calls.groupby(["stage", "name", "model"]):
        done = group[group["status"].eq("done")]
        row: Row = {"name": name, "role": {"generate": "student", "grade": "grader"}[stage], "model": model}
        row["calls"] = len(group)
        for heading, column in (
            ("input tokens", "input_tokens"),
            ("output tokens", "output_tokens"),
            ("US dollars", "cost_usd"),
        ):
            row[heading] = float("nan") if done[column].isna().any() else float(group[column].sum())
        rows.append(row)
    if len(rows) > 1:
        numbers = ("calls", "input tokens", "output tokens", "US dollars")
        rows.append({"name": "all", "role": "–", "model": "–"} | {name: sum(r[name] for r in rows) for name in numbers})
    return rows


def findings(case: Case) -> list[Row]:
    return [row for claim in CLAIMS for row in _claim_rows(case.run, claim)]


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
    practised = [s for s in singles if seconds and _is_equal(sizes[s], sizes[seconds[0]])]
    if claim in ("held-out", "larger k") and practised:
        return [(practised[0], seconds[0])]
    return [(run.base_of(second), second) for second in seconds]


def _is_equal(sizes: tuple[int, int], others: tuple[int, int]) -> bool:
    return all(abs(a - b) <= 0.05 * max(a, b) for a, b in zip(sizes, others, strict=True))


def _claim_rows(run: SecondRun, claim: str) -> Iterable[Row]:
    for first, second in compared(run, claim):
        yield from _pair_rows(run, claim, first, second)


def _pair_rows(run: SecondRun, claim: str, first: str, second: str) -> Iterable[Row]:
    trained = run.models[second]["k"]
    for row in pair_rows(run, first, second):
        if row["setting"] == SETTINGS.get(claim, row["setting"]) and CLAIMS[claim](row["k"], trained):
            yield {
                "claim": claim,
                "students": row["students"],
                "trained on": f"{run.trained_on(second)} − {run.trained_on(first)}",
                **{name: row[name] for name in ("grader", "setting", "k")},
                **{name: row[name] for name in ("difference", "difference low", "difference high")},
                **{name: row[name] for name in ("p", "p, corrected", "verdict", "combinations")},
                "runs": 1,
                "partitions": 1,
            }
