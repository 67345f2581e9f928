"""A run read a second time: its journal, its experiment and what its steps left, without the package's readers."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from skillmix.catalog.combinations import Draw, draw_combinations
from skillmix.catalog.files import load_catalog
from skillmix.runs.run import open_run
from tests.report import second_way
from tests.report.second_way import Frame, Points

Where = tuple[str, str, str, int]
"""Student, grader, setting and k."""


@dataclass
class SecondRun:
    """Everything that tables are made of; combinations are drawn by the package, and tested against a golden file."""

    path: Path
    by_code: dict[str, Callable[[Any], Points]] = field(default_factory=dict)
    """Graders that are code, as functions of a text's row."""
    sentences: Callable[[str], int] = lambda text: text.count(".")
    """Scripted students end every sentence with a full stop, and have no other."""

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.path / "experiment.yaml").read_text(encoding="utf-8"))
        return found

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        (found,) = (step for step in self.document["steps"] if step["stage"] == "evaluate")
        step: dict[str, Any] = found
        return step

    @property
    def students(self) -> list[str]:
        return [name.removeprefix("step:") for name in self.evaluation["students"]]

    @property
    def graders(self) -> list[str]:
        return list(self.evaluation["graders"])

    @property
    def settings(self) -> list[str]:
        return list(self.evaluation["settings"])

    @property
    def ks(self) -> list[int]:
        return sorted(self.evaluation["k"])

    @property
    def generations(self) -> int:
        return int(self.evaluation["generations"])

    @property
    def rounds(self) -> dict[str, int]:
        return {name: grader["rounds"] for name, grader in self.document["graders"].items()}

    @cached_property
    def calls(self) -> Frame:
        return second_way.calls_of(self.path)

    @cached_property
    def texts(self) -> Frame:
        return second_way.texts_of(self.calls)

    @cached_property
    def votes(self) -> Frame:
        return second_way.votes_of(self.calls)

    @cached_property
    def graded(self) -> Frame:
        return second_way.decided(self.texts, self.votes, self.rounds, self.by_code, self.sentences)

    @cached_property
    def catalog(self) -> Any:
        return load_catalog(self.document["catalog"])

    @cached_property
    def drawn(self) -> dict[tuple[str, int], list[Any]]:
        side, seed, gone = self.document["partition"], self.document["seed"], self.document["exclude"]
        return {
            (s, k): draw_combinations(
                Draw(self.catalog.pool(s, partition=side, exclude=gone), s, k, seed),
                self.evaluation["combinations"],
            )
            for s in self.settings
            for k in self.ks
        }

    @property
    def places(self) -> list[Where]:
        return [(st, g, s, k) for st in self.students for g in self.graders for s in self.settings for k in self.ks]

    def cell(self, where: Where, only: Callable[[Any], bool] | None = None) -> Frame:
        """The graded texts of a cell, or of some of its combinations; nobody may change a whole cell."""
        if only is None and where in self._cells:
            return self._cells[where]
        student, grader, setting, k = where
        ids = [c.id for c in self.drawn[setting, k] if only is None or only(c)]
        rows = self._by_k[student, grader, k]
        found = rows[rows["combination"].isin(ids)]
        return self._cells.setdefault(where, found) if only is None else found

    @cached_property
    def _cells(self) -> dict[Where, Frame]:
        return {}

    @cached_property
    def _by_k(self) -> dict[Any, Frame]:
        return dict(iter(self.graded.groupby(["student", "grader", "k"])))

    def summary(self, where: Where, metric: str, only: Callable[[Any], bool] | None = None) -> dict[str, float]:
        if only is None and (where, metric) in self._summaries:
            return self._summaries[where, metric]
        ids = [c.id for c in self.drawn[where[2:]] if only is None or only(c)]
        found = second_way.summary(self.cell(where, only), metric, combinations=ids, generations=self.generations)
        return self._summaries.setdefault((where, metric), found) if only is None else found

    @cached_property
    def _summaries(self) -> dict[tuple[Where, str], dict[str, float]]:
        return {}

    def best(self, where: Where) -> dict[str, float]:
        """Full marks, best of the generations, of the combinations that are complete."""
        if where not in self._bests:
            self._bests[where] = self._best(where)
        return self._bests[where]

    @cached_property
    def _bests(self) -> dict[Where, dict[str, float]]:
        return {}

    def _best(self, where: Where) -> dict[str, float]:
        texts = self.cell(where)
        scored = texts.assign(score=[second_way.metric_of(p, "full marks") for p in texts["points"]])
        found = {}
        for combination, scores in scored.groupby("combination")["score"]:
            if len(scores) == self.generations and scores.notna().all():
                found[str(combination)] = float(scores.max())
        return found

    def differences(self, first: str, second: str, grader: str, setting: str, k: int) -> list[float]:
        return list(self.differences_by_id(first, second, grader, setting, k).values())

    def differences_by_id(self, first: str, second: str, grader: str, setting: str, k: int) -> dict[str, float]:
        before, after = (self.best((student, grader, setting, k)) for student in (first, second))
        return {c: after[c] - before[c] for c in sorted(before.keys() & after.keys())}

    def format_valid(self, where: Where) -> float:
        forms = self.cell(where)["form"]
        written = forms[forms != "refused"]
        return float((written == "fine").mean()) if len(written) else float("nan")

    def valid_clusters(self, where: Where) -> dict[str, tuple[float, int]]:
        """Full marks and number of the texts with a valid form and a decision, by combination."""
        cell = self.cell(where)
        scored = cell.assign(score=[second_way.metric_of(p, "full marks") for p in cell["points"]])
        valid = scored[scored["form"].eq("fine") & scored["score"].notna()].groupby("combination")["score"]
        return {str(c): (float(s.sum()), len(s)) for c, s in valid}

    def format_clusters(self, where: Where) -> dict[str, tuple[float, int]]:
        """Texts with a valid form, and with any, by combination."""
        cell = self.cell(where)
        written = cell[cell["form"].ne("refused")].groupby("combination")["form"]
        return {str(c): (float(s.eq("fine").sum()), len(s)) for c, s in written}

    def among_valid(self, where: Where) -> tuple[float, float, float]:
        """Full marks among texts with a valid form, with the interval."""
        clusters = list(self.valid_clusters(where).values())
        if not clusters:
            return (float("nan"),) * 3
        share = sum(total for total, _ in clusters) / sum(texts for _, texts in clusters)
        return share, *second_way.ratio_interval(clusters)

    def cut(self, where: Where) -> float:
        known = self.cell(where)["cut"].dropna()
        return float(known.sum()) if len(known) else float("nan")

    @cached_property
    def models(self) -> dict[str, dict[str, Any]]:
        """What the tuned students' files say."""
        found = {}
        for student in self.students:
            file = self.path / student / "model" / "skillmix.json"
            if file.exists():
                found[student] = json.loads(file.read_text(encoding="utf-8"))
        return found

    @cached_property
    def datasets(self) -> dict[str, dict[str, Any]]:
        return {
            file.parents[1].name: json.loads(file.read_text(encoding="utf-8"))
            for file in sorted(self.path.glob("*/dataset/skillmix.json"))
        }

    def data_of(self, student: str) -> list[str]:
        """Names of the data sets that a student was trained on."""
        by_hash = {told["hash"]: name for name, told in self.datasets.items()}
        return [by_hash[entry["hash"]] for entry in self.models[student]["dataset"]]

    def rows_of(self, student: str) -> int:
        """Conversations it was trained on: lines of its data, or what the data's file says where there are none."""
        rows = 0
        for name in self.data_of(student):
            lines = self.path / name / "dataset" / "train.jsonl"
            is_there = lines.exists()
            rows += len(lines.read_text("utf-8").splitlines()) if is_there else self.datasets[name]["counts"]["train"]
        return rows

    def steps_of(self, student: str) -> int:
        """Steps of its training, as its file says."""
        recipe = self.models[student]["recipe"]
        return int(recipe.get("steps_taken", recipe["steps"]))

    def yields(self, name: str) -> list[tuple[str, int, int, int]]:
        """Writer, k, conversations written, those with full marks; of a data set made by hand, what its file says."""
        told = self.datasets[name]
        step = next((step for step in self.document["steps"] if step["name"] == name), None)
        if step is None:
            counts = told["counts"]
            (writer,) = told["writers"]
            return [(writer, int(k), n, counts["full_marks"][k]) for k, n in counts["generated"].items()]
        rows = self.graded
        mine = rows[rows["student"].eq(step["writer"]) & rows["grader"].isin(step["graders"])]
        with open_run(str(self.path)).read() as journal:
            places = {combination: place for place, combination in enumerate(journal.combinations())}  # as drawn
        found = []
        for k, texts in mine.groupby("k"):
            in_order = texts.iloc[texts["combination"].map(places).argsort()]
            full = [all(points) for points in in_order["points"]]
            last = [number for number, is_full in enumerate(full, start=1) if is_full][step["target"] - 1]
            found.append((f"{self.name}#{step['writer']}", int(k), last, step["target"]))  # later ones are not needed
        return found

    def trained_on(self, student: str) -> str:
        told = self.models.get(student)
        return "base" if told is None else f"D({','.join(map(str, told['k']))})"

    def base_of(self, student: str) -> str:
        """The untuned student whose spec the tuned one's file names."""
        spec = self.models[student]["base"]["spec"]
        (base,) = (
            name
            for name, settings in self.document["students"].items()
            if settings["model"] == spec and name in self.students and name not in self.models
        )
        return str(base)

    def skill_sets(self, student: str) -> set[frozenset[str]]:
        """Sets of skills that a tuned student was shown together."""
        return {frozenset(skills) for name in self.data_of(student) for skills in self.datasets[name]["skill_sets"]}


def mean(values: Any) -> float:
    """The mean, NaN of nothing."""
    found = list(values)
    return float(np.mean(found)) if found else float("nan")
