"""Scores worked out again with pandas, straight from the tables of a journal, without a line of the package."""

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Frame = Any
"""A data frame; its stubs know too little of what is done with it here."""

LIMIT = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4}


def calls_of(run: Path) -> Frame:
    with closing(sqlite3.connect(run / "run.sqlite")) as connection, connection:
        calls = pd.read_sql_query("SELECT * FROM call", connection)
        messages = pd.read_sql_query("SELECT hash, content FROM message", connection).set_index("hash")["content"]
        meant = pd.read_sql_query("SELECT * FROM combination", connection).set_index("id")
    calls["said"] = calls["reply"].map(messages)
    calls["skills"] = calls["combination"].map(meant["skills"]).map(json.loads)
    calls["topic"] = calls["combination"].map(meant["topic"])
    calls["k"] = calls["skills"].map(len)
    return calls


def texts_of(calls: Frame) -> Frame:
    """One row for each finished conversation: the graded text and whether it kept to the form."""
    turns = calls[calls["stage"] == "generate"].sort_values("turn")
    last = turns.groupby(["student", "combination", "generation"]).tail(1)
    refused = last["status"].eq("problem")
    last = last[refused | last["turn"].eq(2)].copy()
    pattern = r"(?P<marker>Answer: )?(?P<text>.*?)(?:\n\nExplanation|\Z)"
    found = last["said"].fillna("").str.extract(pattern, flags=re.DOTALL)
    last["text"] = found["text"].fillna("").str.strip()
    last["form"] = np.select(
        [last["status"].eq("problem"), last["text"].eq(""), found["marker"].isna()],
        ["refused", "empty", "no marker"],
        "fine",
    )
    last["cut"] = last["finish"].map({"length": True, "max_tokens": True, "stop": False, "end_turn": False})
    return last[["student", "combination", "generation", "skills", "topic", "k", "text", "form", "cut"]]


def votes_of(calls: Frame) -> Frame:
    """One row for each grading call, with its points where every criterion but the length has one."""
    votes = calls[calls["stage"] == "grade"].sort_values(["grader", "round", "attempt"]).copy()
    votes["points"] = [_points(said or "", k) for said, k in zip(votes["said"], votes["k"], strict=True)]
    return votes[
        ["student", "combination", "generation", "grader", "round", "attempt", "k", "skills", "said", "points"]
    ]


def _points(said: str, k: int) -> list[int] | None:
    """The scripted grader writes a row for each criterion, in order; when it forgets one, it is the first."""
    rows = [int(p) for p in re.findall(r"^\| (?!Criteria)[^|\n]+ \| ([01]) \|$", said, flags=re.MULTILINE)]
    return rows[: k + 2] if len(rows) == k + 3 else None


Points = list[bool | None]


def decided(
    texts: Frame,
    votes: Frame,
    rounds: dict[str, int],
    by_code: dict[str, Callable[[Any], Points]] | None = None,
    sentences: Callable[[str], int] = lambda text: text.count("."),
) -> Frame:
    """One row for each text and grader: a list of True, False and None, skills, topic, sense and length."""
    by_code = by_code or {}
    readable = (
        votes[votes["points"].notna()]
        .groupby(["student", "combination", "generation", "grader", "round"], as_index=False)
        .first()
    )
    counted = {
        key: list(group["points"])
        for key, group in readable.groupby(["student", "combination", "generation", "grader"])
    }
    rows = []
    for text in texts.itertuples():
        for grader, most in rounds.items():
            if grader in by_code:
                rows.append({**text._asdict(), "grader": grader, "points": by_code[grader](text)})
                continue
            given = counted.get((text.student, text.combination, text.generation, grader), [])
            rows.append({**text._asdict(), "grader": grader, "points": _decide(text, given, most, sentences)})
    return pd.DataFrame(rows)


def _decide(text: Any, given: list[list[int]], rounds: int, sentences: Callable[[str], int]) -> Points:
    k = text.k
    if text.form in ("refused", "empty"):
        return [False] * (k + 3)
    points: list[bool | None] = []
    for place in range(k + 2):
        ones = sum(vote[place] for vote in given)
        missing = rounds - len(given)
        points.append(True if 2 * ones > rounds else False if 2 * (ones + missing) < rounds else None)
    return [*points, sentences(text.text) <= LIMIT[k]]


def metric_of(points: list[bool | None], metric: str) -> float:
    """The metric, NaN where an undecided point could change it: tried both ways."""
    unknown = [i for i, p in enumerate(points) if p is None]
    values = set()
    for number in range(2 ** len(unknown)):
        filled = [bool(p) for p in points]
        for bit, place in enumerate(unknown):
            filled[place] = bool(number >> bit & 1)
        skills, others = filled[:-3], filled[-3:]
        values.add(
            {
                "full marks": float(all(filled)),
                "all skills": float(all(skills) and sum(others) >= 2),
                "skill fraction": sum(skills) / len(skills) if all(others) else 0.0,
            }[metric]
        )
    return values.pop() if len(values) == 1 else float("nan")


def wilson(share: float, n: int) -> tuple[float, float]:
    z = 1.959963984540054
    centre, half = share + z * z / (2 * n), z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)
    return (0.0 if share == 0 else low), (1.0 if share == 1 else high)


def bootstrap(values: list[float]) -> tuple[float, float]:
    """Percentiles of resampled means, widened for small n by t quantiles (scipy's), drawn from the documented seed."""
    from scipy import stats

    n = len(values)
    if np.ptp(values) < 1e-12:
        return wilson(values[0], n)
    levels, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(20240919).multinomial(n, counts / n, size=10_000)
    tail = stats.norm.cdf(-np.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))
    low, high = np.quantile(drawn @ levels / n, [tail, 1 - tail])
    return float(low), float(high)


FEWEST = 10
"""Combinations below which a bootstrap gives no interval."""


def ratio_interval(clusters: list[tuple[float, int]]) -> tuple[float, float]:
    """Interval of a share of texts, with the texts of each combination drawn together from the documented seed."""
    if len(clusters) < FEWEST:
        return float("nan"), float("nan")
    shares = [total / texts for total, texts in clusters]
    if np.ptp(shares) < 1e-12:
        return wilson(shares[0], len(clusters))
    totals, texts = _resampled([list(cluster) for cluster in clusters])
    return percentiles(totals / texts, len(clusters))


def ratio_difference(pairs: list[tuple[float, int, float, int]]) -> tuple[float, float, float]:
    """Second share minus first, with its interval, over combinations drawn together."""
    rows = np.array(pairs)
    first, texts_first, second, texts_second = rows.sum(axis=0)
    value = second / texts_second - first / texts_first
    drawn = _resampled([list(pair) for pair in pairs])
    means = drawn[2] / drawn[3] - drawn[0] / drawn[1]
    n = int(min((rows[:, 1] > 0).sum(), (rows[:, 3] > 0).sum()))
    if np.ptp(means) < 1e-12:
        other = wilson(0.0, n)[1]
        return value, value - other * (1 + value), value + other * (1 - value)
    return value, *percentiles(means, n)


def _resampled(rows: list[list[float]]) -> Any:
    levels, counts = np.unique(np.array(rows, dtype=float), axis=0, return_counts=True)
    drawn = np.random.default_rng(20240919).multinomial(len(rows), counts / len(rows), size=10_000)
    return (drawn @ levels).T


def percentiles(means: Any, n: int) -> tuple[float, float]:
    from scipy import stats

    tail = stats.norm.cdf(-np.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def difference_interval(differences: list[float]) -> tuple[float, float]:
    """The same bootstrap for differences in -1..1; where nothing varies, Wilson's share may be anything else."""
    if len(differences) < FEWEST:
        return float("nan"), float("nan")
    if np.ptp(differences) < 1e-12:
        other, value = wilson(0.0, len(differences))[1], differences[0]
        return value - other * (1 + value), value + other * (1 - value)
    return bootstrap(differences)


def holm(p_values: list[float]) -> list[float]:
    order = np.argsort(p_values, kind="stable")
    steps = [min(1.0, (len(order) - rank) * p_values[i]) for rank, i in enumerate(order)]
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(steps)
    return [float(p) for p in corrected]


def family_p(family: list[dict[str, Any]]) -> None:
    """Correct the p-values of two students under one grader; rows with few differing combinations keep theirs."""
    counted = [row for row in family if row["wins"] + row["losses"] >= 6]
    for row, p in zip(counted, holm([row["p"] for row in counted]), strict=True):
        row["p, corrected"] = p


def verdict(row: dict[str, Any]) -> str:
    low, high = row["difference low"], row["difference high"]
    if low != low:
        return "too few combinations"
    if row["p, corrected"] >= 0.05 or low <= 0 <= high:
        return "within noise"
    return "a gain" if low > 0 else "a loss"


def summary(texts: Frame, metric: str, *, combinations: list[str], generations: int) -> dict[str, float]:
    """Everything that a cell of a table says."""
    scored = texts.assign(score=[metric_of(p, metric) for p in texts["points"]])
    by_combination = scored.groupby("combination")["score"]
    whole = by_combination.apply(lambda s: len(s) == generations and bool(s.notna().all()))
    kept = [c for c in combinations if bool(whole.get(c, False))]
    best = [float(by_combination.get_group(c).max()) for c in kept]
    tries = [float(by_combination.get_group(c).mean()) for c in kept]
    out: dict[str, float] = {
        "complete": len(kept),
        "combinations": len(combinations),
        "ungraded": int(scored["score"].isna().sum()) + generations * len(combinations) - len(scored),
        "format_failures": int(scored["form"].isin(["no marker", "empty"]).sum()),
    }
    if kept:
        value, single = float(np.mean(best)), float(np.mean(tries))
        out |= {"value": value, "one_try": single}
        if metric != "skill fraction" or len(kept) >= FEWEST:
            ends = wilson(value, len(kept)) if metric != "skill fraction" else bootstrap(best)
            out |= {"low": ends[0], "high": ends[1]}
        if len(kept) >= FEWEST:
            ends = bootstrap(tries)
            out |= {"one_try_low": ends[0], "one_try_high": ends[1]}
    return out
