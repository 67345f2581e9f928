"""Tables of grader cards, worked out a second time, unit by unit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations as subsets
from typing import Any

import numpy as np
from scipy.stats import t

from tests.report import second_way
from tests.report.expected_scores import Case, Row
from tests.report.second_run import SecondRun

NAN = float("nan")
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Unit:
    """A point that a grader decided, and the truth where there is one."""

    text: Any
    place: int | None
    given: bool
    earned: bool | None
    weight: float

    @property
    def group(self) -> tuple[str, int]:
        return self.text.student, self.text.k


class Cards:
    """The texts of a run under two graders."""

    def __init__(self, case: Case, grader: str, truth: str) -> None:
        self.run: SecondRun = case.run
        self.grader, self.truth = grader, truth
        shown = self.run.graded[~self.run.graded["form"].isin(["empty", "refused"])]
        rows: dict[Key, dict[str, Any]] = {}
        for row in shown.itertuples():
            rows.setdefault((row.student, row.combination, row.generation), {})[row.grader] = row
        own = {key: by for key, by in rows.items() if any(p is not None for p in by[grader].points[:-1])}
        self.texts = {key: by[grader] for key, by in own.items()}
        self.labels = {
            key: by[truth].points for key, by in own.items() if any(p is not None for p in by[truth].points[:-1])
        }
        others = [name for name in sorted(self.run.rounds) if name != truth]
        outcome = {key: tuple(str(_full(by[name].points)) for name in others) for key, by in own.items()}
        self.weights = self._weights(outcome)

    def _weights(self, outcome: dict[Key, Any]) -> dict[Key, float]:
        if len(self.labels) == len(self.texts):
            return dict.fromkeys(self.texts, 1.0)
        stratum = {key: (text.student, text.k, outcome[key]) for key, text in self.texts.items()}
        with_label = {stratum[key] for key in self.labels}
        groups = {s[:2] for s in with_label}
        weights = {}
        for key in self.labels:
            alike = [other for other in self.texts if outcome[other] == outcome[key]]
            all_of_outcome = sum(stratum[other][:2] in groups for other in alike)
            reached = sum(stratum[other] in with_label for other in alike)
            texts = sum(stratum[other] == stratum[key] for other in self.texts)
            labels = sum(stratum[other] == stratum[key] for other in self.labels)
            weights[key] = texts / labels * all_of_outcome / reached
        return weights

    def unit(self, key: Key, place: int | None, given: bool) -> Unit | None:
        label = self.labels.get(key)
        if label is None:
            return Unit(self.texts[key], place, given, None, 1.0)
        earned = _full(label) if place is None else label[place]
        return (
            None
            if earned is None and place is not None
            else Unit(self.texts[key], place, given, earned, self.weights[key])
        )

    def criteria(self) -> list[Unit]:
        found = [
            self.unit(key, place, given)
            for key, text in self.texts.items()
            for place, given in enumerate(text.points[:-1])
            if given is not None
        ]
        return _labelled_groups(found)

    def full_marks(self) -> list[Unit]:
        found = [
            self.unit(key, None, given)
            for key, text in self.texts.items()
            if text.points[-1] and (given := _full(text.points)) is not None
        ]
        return _labelled_groups(found)

    def by_round(self) -> dict[int, list[Unit]]:
        return {
            number: _labelled_groups(
                self.unit(key, place, given == 1)
                for key, rounds in self.votes().items()
                if key in self.texts and rounds[number] is not None
                for place, given in enumerate(rounds[number] or [])
            )
            for number in range(self.run.rounds[self.grader] if self.grader not in self.run.by_code else 0)
        }

    def votes(self) -> dict[Key, list[list[int] | None]]:
        """The first readable vote of each round, by text."""
        found: dict[Key, dict[int, list[int] | None]] = {}
        for vote in self.run.votes[self.run.votes["grader"].eq(self.grader)].itertuples():
            rounds = found.setdefault((vote.student, vote.combination, vote.generation), {})
            rounds[vote.round] = rounds.get(vote.round) or vote.points
        return {key: [rounds[number] for number in sorted(rounds)] for key, rounds in found.items()}


def _full(points: Any) -> bool | None:
    if False in points:
        return False
    return None if None in points else True


def _labelled_groups(units: Iterable[Unit | None]) -> list[Unit]:
    known = [unit for unit in units if unit is not None]
    groups = {unit.group for unit in known if unit.earned is not None}
    return [unit for unit in known if unit.group in groups]


Sized = tuple[float, float]
"""A share, and its effective number of units."""


def sized(values: list[tuple[bool, str, float]]) -> Sized:
    """From values, clusters and weights, one at a time."""
    if not values:
        return 0.0, 0.0
    total = sum(w for *_, w in values)
    share = sum(w for v, _, w in values if v) / total
    most = total**2 / sum(w * w for *_, w in values)
    clusters: dict[str, tuple[float, float]] = {}
    for value, cluster, weight in values:
        sums = clusters.get(cluster, (0.0, 0.0))
        clusters[cluster] = sums[0] + weight, sums[1] + weight * (value - share)
    least = total**2 / sum(w * w for w, _ in clusters.values())
    if len(clusters) == len(values):
        return share, most
    if len(clusters) == 1 or share in (0.0, 1.0):
        return share, least
    effect = sum(r * r for _, r in clusters.values()) / sum((w * (v - share)) ** 2 for v, _, w in values)
    if effect < 1 + 1e-12:
        return share, most
    narrower = (1.959963984540054 / float(t.ppf(0.975, len(clusters) - 1))) ** 2
    return share, max(least, most / effect * narrower)


def measures(units: list[Unit]) -> dict[str, tuple[float, float, float]]:
    """Every measure with the ends of its interval."""
    labelled = [unit for unit in units if unit.earned is not None]
    if len(labelled) == len(units):
        labelled = [replace(unit, weight=1.0) for unit in labelled]
    q = sized([(u.given, u.text.combination, 1.0) for u in units])
    right = sized([(bool(u.earned), u.text.combination, u.weight) for u in labelled if u.given])
    wrong = sized([(bool(u.earned), u.text.combination, u.weight) for u in labelled if not u.given])
    if (q[0] > 0 and not right[1]) or (q[0] < 1 and not wrong[1]):
        return {}
    generator = np.random.default_rng(20240919)
    counts = [(round(s * n, 6), round(n, 6)) for s, n in (q, right, wrong)]
    drawn = [generator.beta(earned + 0.5, size - earned + 0.5, size=4000) for earned, size in counts]
    n = len(labelled)
    point, draws = (_formulas(*parts) for parts in ((q[0], right[0], wrong[0]), drawn))
    point["alpha"] = 1 - (1 - point["alpha"]) * (2 * n - 1) / (2 * n)
    found = {name: (float(v), *_middle(draws[name], float(v))) for name, v in point.items()}
    if n == len(units):
        for name, chosen in _SHARES.items():
            values = [(value, u.text.combination, 1.0) for u in labelled if (value := chosen(u)) is not None]
            found[name] = _with_wilson(sized(values))
    return found


_SHARES: dict[str, Callable[[Unit], bool | None]] = {
    "agreement": lambda u: u.given == u.earned,
    "sensitivity": lambda u: u.given if u.earned else None,
    "specificity": lambda u: None if u.earned else not u.given,
    "truth gives": lambda u: u.earned,
}


def _formulas(q: Any, right: Any, wrong: Any) -> dict[str, Any]:
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = np.multiply(q, right), np.multiply(1 - np.asarray(q), wrong)
        c, d = q - a, 1 - np.asarray(q) - b
        chance = (a + c) * (a + b) + (b + d) * (c + d)
        centre = (2 * a + b + c) / 2
        return {
            "agreement": a + d,
            "sensitivity": a / (a + b),
            "specificity": d / (c + d),
            "kappa": (a + d - chance) / (1 - chance),
            "alpha": 1 - (b + c) / (2 * centre * (1 - centre)),
            "truth gives": a + b,
            "grader minus truth": c - b,
        }


def _middle(draws: Any, value: float) -> tuple[float, float]:
    if np.isnan(value):
        return NAN, NAN
    low, high = np.quantile(draws[np.isfinite(draws)], [0.025, 0.975])
    return min(float(low), value), max(float(high), value)


def _with_wilson(found: Sized) -> tuple[float, float, float]:
    share, size = found
    return (share, *second_way.wilson(share, size)) if size else (NAN, NAN, NAN)  # type: ignore[arg-type]


def _columns(found: dict[str, tuple[float, float, float]], *names: str) -> Row:
    row: Row = {}
    for name in names:
        value, low, high = found.get(name, (NAN, NAN, NAN))
        row |= {name: value, f"{name} low": low, f"{name} high": high}
    return row


MEASURES = ("agreement", "sensitivity", "specificity", "kappa", "alpha", "truth gives")


def cards(case: Case) -> list[Cards]:
    """Every grader against code, or against the first other grader by name."""
    names = sorted(case.run.rounds)
    code = [name for name in names if name in case.run.by_code]
    pairs = [(name, next((n for n in [*code, *names] if n != name), None)) for name in names]
    made = [Cards(case, name, truth) for name, truth in pairs if truth is not None]
    return [card for card in made if card.labels]


def _kind(unit: Unit) -> str:
    k = unit.text.k
    return "skill" if unit.place is not None and unit.place < k else {k: "topic", k + 1: "sense"}[unit.place or 0]


def _decided(units: list[Unit]) -> int:
    return sum(unit.earned is not None for unit in units)


def grader_cards(case: Case) -> list[Row]:
    rows = []
    for card in cards(case):
        criteria = card.criteria()
        groups = {kind: [u for u in criteria if _kind(u) == kind] for kind in ("skill", "topic", "sense")}
        for kind, units in {**groups, "full marks": card.full_marks()}.items():
            row: Row = {"grader": card.grader, "truth": card.truth, "criterion": kind}
            rows.append({**row, "decided by both": _decided(units), **_columns(measures(units), *MEASURES)})
    return rows


def grader_cards_by_skill(case: Case) -> list[Row]:
    rows = []
    for card in cards(case):
        groups: dict[str, list[Unit]] = {}
        for unit in card.criteria():
            if _kind(unit) == "skill":
                groups.setdefault(unit.text.skills[unit.place or 0], []).append(unit)
        for skill, units in groups.items():
            row: Row = {"grader": card.grader, "truth": card.truth, "skill": skill}
            if _decided(units):
                rows.append({**row, "decided by both": _decided(units), **_columns(measures(units), *MEASURES)})
    return rows


def grader_bias(case: Case) -> list[Row]:
    rows = []
    for card in cards(case):
        units = card.criteria()
        groups: list[tuple[str, str, list[Unit]]] = [("all", "all", units)]
        for student in sorted({u.text.student for u in units}):
            groups.append(("student", student, [u for u in units if u.text.student == student]))
        groups += [("length", name, third) for name, third in _thirds(units)]
        skills = [u for u in units if _kind(u) == "skill" and u.text.k > 1]
        for place in sorted({u.place or 0 for u in skills}):
            groups.append(("position", f"skill {place + 1}", [u for u in skills if u.place == place]))
        rounds = card.by_round()
        groups += [("round", f"round {n + 1}", own) for n, own in rounds.items()] if len(rounds) > 1 else []
        for by, group, own in groups:
            row: Row = {"grader": card.grader, "truth": card.truth, "by": by, "group": group}
            found = _columns(measures(own), "grader minus truth", "agreement")
            rows.append({**row, "decided by both": _decided(own), **found})
    return rows


def _thirds(units: list[Unit]) -> Iterable[tuple[str, list[Unit]]]:
    words = {(u.text.student, u.text.combination, u.text.generation): len(u.text.text.split()) for u in units}
    lengths = sorted(words.values())
    if lengths[0] == lengths[-1]:
        return
    first, second = lengths[(len(lengths) - 1) // 3], lengths[2 * (len(lengths) - 1) // 3]
    for name, low, high in (("short", 0, first), ("medium", first + 1, second), ("long", second + 1, lengths[-1])):
        own = [u for u in units if low <= len(u.text.text.split()) <= high]
        if own:
            here = [len(u.text.text.split()) for u in own]
            yield f"{name}, {min(here)} to {max(here)} words", own


def grader_steadiness(case: Case) -> list[Row]:
    rows = []
    for card in cards(case):
        votes = card.votes()
        unreadable = [(vote is None, key[1], 1.0) for key, rounds in votes.items() for vote in rounds]
        flips = [
            (one[place] != other[place], key[1], 1.0)
            for key, rounds in votes.items()
            for one, other in subsets([vote for vote in rounds if vote is not None], 2)
            for place in range(len(one))
        ]
        calls = card.run.calls[card.run.calls["grader"].eq(card.grader)]
        cost = float(calls["cost_usd"].sum()) / len(votes) if len(votes) else 0.0
        is_code = card.grader in card.run.by_code
        rows.append(
            {
                "grader": card.grader,
                "model": card.run.document["graders"][card.grader]["model"],
                "texts": len(card.texts),
                "texts with a label": len(card.labels),
                "pairs of rounds": len(flips),
                **_columns({"flips": _with_wilson(sized(flips))}, "flips"),
                "rounds": len(unreadable),
                **_columns({"unreadable": _with_wilson(sized(unreadable))}, "unreadable"),
                "US dollars a text": 0.0 if is_code else cost,
            }
        )
    return rows


def corrected_scores(case: Case) -> list[Row]:
    """Where the truth is code, every text has a label, and the corrected score is that of code."""
    rows = []
    for card in cards(case):
        for student in card.run.students if card.truth in card.run.by_code else ():
            for setting in card.run.settings:
                for k in card.run.ks:
                    own, true = (card.run.cell((student, name, setting, k)) for name in (card.grader, card.truth))
                    both = [(a, b) for a, b in zip(own.itertuples(), true.itertuples(), strict=True)]
                    both = [(a, b) for a, b in both if _full(a.points) is not None]
                    raw = sized([(bool(_full(a.points)), a.combination, 1.0) for a, _ in both])
                    corrected = sized([(bool(_full(b.points)), b.combination, 1.0) for _, b in both])
                    row: Row = {"grader": card.grader, "truth": card.truth, "student": student, "setting": setting}
                    found = {"raw": _with_wilson(raw), "corrected": _with_wilson(corrected)}
                    open_texts = sum(bool(a.points[-1]) and a.form not in ("empty", "refused") for a, _ in both)
                    counts = {"k": k, "texts": len(both), "labels": open_texts}
                    rows.append({**row, **counts, **_columns(found, "raw", "corrected"), "by": "truth"})
    return rows
