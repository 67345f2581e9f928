"""Tables of graders and criteria, worked out a second time, row by row."""

import re
from collections.abc import Iterable
from functools import cache
from itertools import combinations as subsets
from math import prod
from operator import mul
from typing import Any

import krippendorff
import numpy as np
from sklearn.metrics import cohen_kappa_score

from tests.report import second_way
from tests.report.expected_scores import Case, Row
from tests.report.second_run import SecondRun, Where, mean

KINDS = ("skill", "topic", "sense")


def _over_settings(run: SecondRun) -> Iterable[tuple[Row, list[Any]]]:
    """Texts of each student, grader and k, once for every setting that draws them."""
    for student in run.students:
        for grader in run.graders:
            for k in run.ks:
                cells = [run.cell((student, grader, setting, k)) for setting in run.settings]
                yield {"student": student, "grader": grader, "k": k}, [t for cell in cells for t in cell.itertuples()]


def points_by_criterion(case: Case) -> list[Row]:
    places = {"a skill": slice(0, -3), "topic": slice(-3, -2), "sense": slice(-2, -1), "length": slice(-1, None)}
    return [
        {
            **head,
            "texts": len(texts),
            **{n: mean(p for t in texts for p in t.points[places[n]] if p is not None) for n in places},
        }
        for head, texts in _over_settings(case.run)
    ]


def why_full_marks_were_missed(case: Case) -> list[Row]:
    run = case.run
    rows = []
    for head, texts in _over_settings(run):
        reasons = [_reason(text.points, text.form) for text in texts]
        counts = {reason: reasons.count(reason) for reason in _REASONS}
        planned = sum(len(run.drawn[setting, head["k"]]) for setting in run.settings) * run.generations
        rows.append({**head, "texts": len(texts), **counts, "not there": planned - len(texts)})
    return rows


def texts_that_follow_an_example(case: Case) -> list[Row]:
    examples = tuple(skill.example for skill in case.run.catalog.skills)
    rows = []
    for where in case.run.places:
        texts = list(case.run.cell(where).itertuples())
        follows = [_follows_one(t.text, examples) for t in texts]
        full = [all(t.points) for t in texts]
        row: Row = dict(zip(("student", "grader", "setting", "k"), where, strict=True))
        both = sum(f and m for f, m in zip(follows, full, strict=True))
        counts = {"texts": len(texts), "follow": sum(follows), "share": mean(follows)}
        rows.append({**row, **counts, "full marks": sum(full), "full marks, follow": both})
    return rows


def templates(case: Case) -> list[Row]:
    followed = texts_that_follow_an_example(case)
    rows = []
    for where, counted in zip(case.run.places, followed, strict=True):
        texts = [t for t in case.run.cell(where).itertuples() if all(t.points)]
        runs = [run for t in texts for run in _runs_of_four(t.text)]
        row: Row = dict(zip(("student", "grader", "setting", "k"), where, strict=True))
        row["full marks"] = len(texts)
        row["same words"] = _same_words(case, texts)
        row["distinct-4"] = len(set(runs)) / len(runs) if runs else float("nan")
        row["follow an example"] = mean(
            [1] * counted["full marks, follow"] + [0] * (len(texts) - counted["full marks, follow"])
        )
        rows.append(row)
    return rows


def _runs_of_four(text: str) -> list[str]:
    words = re.findall(r"\w+(?:'\w+)*", text.lower().replace("’", "'"))
    return [" ".join(words[n : n + 4]) for n in range(len(words) - 3)]


def _same_words(case: Case, texts: list[Any]) -> float:
    if case.masked_by_code is None or not texts:
        return float("nan")
    shown = [(t.combination, case.masked_by_code(t)) for t in texts]
    return mean(
        all(any(other != own and words.get(skill) == said for other, words in shown) for skill, said in masked.items())
        for own, masked in shown
    )


@cache
def _follows_one(text: str, examples: tuple[str, ...]) -> bool:
    """Each setting and each table asks about the same texts again."""
    triples = _triples(text)
    return any(_is_followed(_triples(example), triples) for example in examples)


@cache
def _triples(text: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+(?:'\w+)*", text.lower().replace("’", "'"))
    return frozenset(tuple(words[n : n + 3]) for n in range(len(words) - 2))


def _is_followed(example: frozenset[tuple[str, ...]], text: frozenset[tuple[str, ...]]) -> bool:
    common = len(example & text)
    return common >= 3 and 2 * common >= len(example)


_REASONS = ("full marks", "format", "in its thought", "refused", "skills", "others", "both", "undecided")


def _reason(points: list[bool | None], form: str) -> str:
    if all(points):
        return "full marks"
    if form != "fine":
        return "refused" if form == "refused" else "format"
    skills, others = False in points[:-3], False in points[-3:]
    return {(True, True): "both", (True, False): "skills", (False, True): "others"}.get((skills, others), "undecided")


def independence(run: SecondRun, where: Where) -> dict[str, float]:
    """Observed one-try full marks, and products of the skills' own rates."""
    student, grader, setting, _ = where
    texts = [t for t in run.cell(where).itertuples() if None not in t.points]
    others = mean(all(t.points[-3:]) for t in texts)
    tried = run.cell((student, grader, setting, 1)).itertuples() if 1 in run.ks else ()
    alone = [t for t in tried if None not in t.points]
    found = {"texts": len(texts), "observed": mean(all(t.points) for t in texts)}
    for name, source in (("expected, same k", texts), ("expected, k = 1", alone)):
        shown: dict[str, list[bool]] = {}
        for text in source:
            for skill, point in zip(text.skills, text.points, strict=False):
                shown.setdefault(skill, []).append(point)
        products = [np.prod([mean(shown[s]) for s in t.skills]) for t in texts if all(s in shown for s in t.skills)]
        found[name] = others * mean(products)
    return {**found, "without a rate": len(texts) - len(products)}


def observed_and_independent(case: Case) -> list[Row]:
    rows = []
    for where in case.run.places:
        found, test = independence(case.run, where), _independence_test(case.run, where)
        row: Row = dict(zip(("student", "grader", "setting", "k"), where, strict=True))
        row["texts"] = found["texts"]
        row |= {"observed": found["observed"], **test["observed"]}
        row |= {"expected, same k": found["expected, same k"], **test["expected, same k"], "p": test["p"]}
        row |= {"expected, k = 1": found["expected, k = 1"], **test["expected, k = 1"]}
        rows.append(row | {"without a rate": found["without a rate"]})
    return rows


def _independence_test(run: SecondRun, where: Where) -> dict[str, Any]:
    """Intervals, and a permutation test with draws of its own: keys are sorted, one combination and skill at a time."""
    student, grader, setting, k = where
    texts = _decided_blocks(run, where)
    alone = _decided_blocks(run, (student, grader, setting, 1)) if 1 in run.ks else []
    clusters = [(float(sum(all(p) for _, p in block)), len(block)) for block in texts]
    shares = _permuted_shares(texts)
    observed = mean(all(p) for block in texts for _, p in block)
    extreme = min(np.mean(shares >= observed - 1e-9), np.mean(shares <= observed + 1e-9))
    enough = min(len(texts), len(alone)) >= second_way.FEWEST
    k1 = _k1_interval(texts, alone) if enough else (float("nan"), float("nan"))
    return {
        "observed": _ends("observed", second_way.ratio_interval(clusters)),
        "expected, same k": _ends("expected, same k", np.quantile(shares, [0.025, 0.975])),
        "p": min(1.0, 2 * extreme) if k > 1 else float("nan"),
        "expected, k = 1": _ends("expected, k = 1", k1),
    }


def _ends(name: str, ends: Any) -> Row:
    return {f"{name} low": float(ends[0]), f"{name} high": float(ends[1])}


Block = list[tuple[list[str], list[bool]]]
"""Skills and points of the decided texts of one combination."""


def _decided_blocks(run: SecondRun, where: Where) -> list[Block]:
    texts = run.cell(where)
    decided = texts[[None not in points for points in texts["points"]]]
    groups = {c: [(t.skills, t.points) for t in rows.itertuples()] for c, rows in decided.groupby("combination")}
    drawn = [c.id for c in run.drawn[where[2:]]]
    return [groups[c] for c in drawn if c in groups]


def _permuted_shares(blocks: list[Block], draws: int = 2000) -> Any:
    generator = np.random.default_rng(5)
    full = {number: np.ones((draws, len(block)), dtype=bool) for number, block in enumerate(blocks)}
    groups: dict[tuple[str, int], list[tuple[int, list[bool]]]] = {}
    for number, block in enumerate(blocks):
        for position, skill in enumerate(block[0][0]):
            shown = [points[position] for _, points in block]
            groups.setdefault((skill, len(block)), []).append((number, shown))
        groups.setdefault(("the other three", len(block)), []).append((number, [all(p[-3:]) for _, p in block]))
    for members in groups.values():
        order = generator.random((draws, len(members))).argsort(axis=1)
        outcomes = np.array([shown for _, shown in members])
        for to, (number, _) in enumerate(members):
            taken = outcomes[order[:, to]]
            within = generator.random(taken.shape).argsort(axis=1)
            full[number] &= np.take_along_axis(taken, within, axis=1)
    return np.concatenate(list(full.values()), axis=1).mean(axis=1)


def _k1_interval(texts: list[Block], alone: list[Block]) -> tuple[float, float]:
    """Resample by resample, from the documented seed."""
    generator = np.random.default_rng(20240919)
    of_alone = generator.multinomial(len(alone), np.full(len(alone), 1 / len(alone)), size=1000).tolist()
    of_texts = generator.multinomial(len(texts), np.full(len(texts), 1 / len(texts)), size=1000).tolist()
    single = [(block[0][0][0], sum(p[0] for _, p in block), len(block)) for block in alone]
    met = [sum(all(p[-3:]) for _, p in block) for block in texts]
    values = []
    for one, many in zip(of_alone, of_texts, strict=True):
        counts: dict[str, list[float]] = {}
        for (skill, shown, asked), times in zip(single, one, strict=True):
            if times:
                total = counts.setdefault(skill, [0.0, 0.0])
                total[0] += shown * times
                total[1] += asked * times
        products, weights = [], []
        for block, times in zip(texts, many, strict=True):
            if times and all(skill in counts for skill in block[0][0]):
                products.append(prod(counts[s][0] / counts[s][1] for s in block[0][0]))
                weights.append(times * len(block))
        sizes = [times * len(block) for block, times in zip(texts, many, strict=True)]
        if weights:
            others = sum(m * times for m, times in zip(met, many, strict=True)) / sum(sizes)
            values.append(others * sum(map(mul, products, weights)) / sum(weights))
    return second_way.percentiles(values, min(len(texts), len(alone))) if values else (float("nan"),) * 2


def rounds(case: Case) -> list[Row]:
    readable = (
        case.run.votes[case.run.votes["points"].notna()]
        .groupby(["student", "combination", "generation", "grader", "round"], as_index=False)
        .first()
    )
    units: dict[tuple[str, str], list[list[float]]] = {}
    for (_, _, _, grader), group in readable.groupby(["student", "combination", "generation", "grader"]):
        k = int(group["k"].iloc[0])
        for place in range(k + 2 if len(group) > 1 else 0):
            units.setdefault((grader, _kind(place, k)), []).append([p[place] for p in group["points"]])
    rows = []
    for (grader, kind), found in units.items():
        pairs = [a != b for unit in found for a, b in subsets(unit, 2)]
        row = {"grader": grader, "criterion": kind, "decided by": "model", "criteria of texts": len(found)}
        rows.append({**row, "flips": mean(pairs), "alpha": _alpha(found)})
    return rows


def _kind(place: int, k: int) -> str:
    return "skill" if place < k else KINDS[1 + place - k]


def _alpha(units: list[list[float]]) -> float:
    if len({value for unit in units for value in unit}) < 2:
        return float("nan")
    longest = max(map(len, units))
    ratings = np.array([[*map(float, unit), *[np.nan] * (longest - len(unit))] for unit in units]).T
    return float(krippendorff.alpha(ratings, level_of_measurement="nominal", value_domain=[0, 1]))


def _decided_twice(run: SecondRun) -> Iterable[tuple[tuple[str, str], str, str, bool, bool]]:
    """Graders, kind, name and both points of every criterion that two graders decided."""
    shown = run.graded[run.graded["text"] != ""]
    for _, group in shown.groupby(["student", "combination", "generation"]):
        by_grader = {row.grader: row for row in group.itertuples()}
        for first, second in subsets(sorted(by_grader), 2):
            text = by_grader[first]
            for place in range(text.k + 2):
                a, b = text.points[place], by_grader[second].points[place]
                if a is not None and b is not None:
                    kind = _kind(place, text.k)
                    yield (first, second), kind, text.skills[place] if kind == "skill" else kind, a, b


def graders_agreement(case: Case) -> list[Row]:
    pairs: dict[tuple[tuple[str, str], str], list[tuple[bool, bool]]] = {}
    for graders, kind, _, a, b in _decided_twice(case.run):
        pairs.setdefault((graders, kind), []).append((a, b))
    rows = []
    for ((first, second), kind), found in pairs.items():
        one, other = zip(*found, strict=True)
        rows.append(
            {
                "graders": f"{first} and {second}",
                "criterion": kind,
                "criteria of texts": len(found),
                "agree": mean(a == b for a, b in found),
                "kappa": float(cohen_kappa_score(one, other)),
                "alpha": _alpha([[float(a), float(b)] for a, b in found]),
                "first gives": mean(one),
                "second gives": mean(other),
            }
        )
    return rows


def graders_disagree_on(case: Case) -> list[Row]:
    counts: dict[str, list[bool]] = {}
    for _, _, name, a, b in _decided_twice(case.run):
        counts.setdefault(name, []).append(a != b)
    worst = sorted((-mean(found), name) for name, found in counts.items() if any(found))[:25]
    return [
        {"criterion": n, "texts": len(counts[n]), "decided differently": sum(counts[n]), "share": -share}
        for share, n in worst
    ]


def unreadable(case: Case) -> list[Row]:
    rows = []
    for grader, calls in case.run.votes.groupby("grader"):
        silent, lost = int(calls["said"].isna().sum()), int(calls["points"].isna().sum())
        # The scripted grader has one way only of being unreadable: it forgets the row of the first skill.
        forgotten = [skills[0] for skills in calls[calls["points"].isna()]["skills"]]
        worst = sorted((-forgotten.count(skill), skill) for skill in set(forgotten))[:5]
        reason = "; ".join(f"{-count} × no point found for: {skill}" for count, skill in worst) or "–"
        row = {"grader": grader, "calls": len(calls), "without a reply": silent, "unreadable": lost - silent}
        rows.append({**row, "share of replies": (lost - silent) / (len(calls) - silent), "reasons": reason})
    return rows
