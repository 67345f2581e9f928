"""Write a result file from finished runs: `python -m tools.result RUN [RUN …] --output FILE`.

A result file is a JSON object, and `tools/readme.py` makes a page and the headline of the README from it. All
scores are full marks under the first grader. With several partitions, a score is the mean over partitions, with a 95%
interval by Student's t. With one partition, the interval is over combinations.

- `made_by`: the command that wrote the file;
- `runs`: for each run its `name`, the `command` that makes it, its `partitions`, `seeds`, `grader` and graded `texts`;
- `students`: for each trained student, by its name in the file, the number of its `weights` and its texts by k;
- `comparisons`: the planned comparisons in their order: `title`, `claim`, `condition`, `student`, `setting`, `k`, the
  other side (`against`), the two scores (`value`, `against_value`), `difference`, `low`, `high`, `p` (the largest up to
  this comparison), `words`, `verdict`, and `by_partition`;
- `scores`: for each run, student, setting and k (and the values of `matrix`) the score of `one_try` and of the `best`
  of `generations` texts, each as `value`, `low` and `high`;
- `gates`: conditions without which the comparisons mean little: `student`, `setting`, `k`, `value`, `least`, `holds`;
- `doses`: new figures at k = 2 after `examples` composed texts of each new figure, with and without other composed
  texts; students whose names begin with `random-` have random weights as their base;
- `example`: lines with a text of each student of the first comparison;
- `conditions` (with `--condition NAME=RUN`): scores on new figures of runs that change one thing, and `checks` (with
  `--checks FILE`): the output of `tools/attacks.py`.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from pathlib import Path
from shlex import join
from statistics import fmean, stdev
from typing import Any, Final

from skillmix.experiment.step_base import label_parts
from skillmix.grading.points import FULL_MARKS
from skillmix.models.checkpoints import parameters_in
from skillmix.models.lineage_files import LINEAGE_FILE, read_dataset_file, read_model_file
from skillmix.runs.run import Run, open_run
from skillmix.scores.cells import Cell, Cells
from skillmix.scores.findings import JudgedContrast, judged_contrasts
from skillmix.scores.scoring import comparable_in, scored_cells
from skillmix.scores.sentences import contrast_result, example_lines
from skillmix.scores.statistics.intervals import CONFIDENCE, mean_interval, t_quantile, wilson_interval

LEAST_AT_1: Final = 0.85
LEAST_TRAINED: Final = 0.5
"""The smallest one-try means over partitions that the gates in experiments/composition.yaml require."""


@dataclass(frozen=True)
class Row:
    """The cells of a student in one setting at one k, by partition."""

    run: str
    student: str
    """The name of the student in the result file."""
    values: tuple[tuple[str, Any], ...]
    """The values of the matrix keys for this student, by key."""
    setting: str
    k: int
    cells: dict[str, list[Cell]]

    def score(self, name: str, *, only: Iterable[str] = ()) -> dict[str, float | None]:
        """Compute the score of one try, or of the best text of each combination, with its interval."""
        chosen = [self.cells[partition] for partition in self.cells if not only or partition in only]
        units = [[v for cell in cells for v in _by_combination(cell, name)] for cells in chosen]
        means = [fmean(unit) for unit in units]
        return {"value": fmean(means)} | dict(zip(("low", "high"), _interval(means, units, name), strict=True))


def _by_combination(cell: Cell, name: str) -> list[float]:
    tries = [[v for v in texts if v is not None] for texts in cell.values(FULL_MARKS)]
    return [max(texts) if name == "best" else fmean(texts) for texts in tries]


def _interval(
    means: Sequence[float], units: Sequence[Sequence[float]], name: str
) -> tuple[float, float] | tuple[None, None]:
    if len(units) == 1:
        (values,) = units
        ends = wilson_interval(means[0], len(values)) if name == "best" else mean_interval(values)
        return ends.low, ends.high
    if max(means) == min(means):
        ends = wilson_interval(means[0], sum(map(len, units)))
        return ends.low, ends.high
    if len(means) < 3:
        return None, None
    half = float(t_quantile((1 + CONFIDENCE) / 2, len(means) - 1)) * stdev(means) / sqrt(len(means))
    return max(0.0, fmean(means) - half), min(1.0, fmean(means) + half)


def result_of(names: Sequence[str], *, output: str) -> dict[str, Any]:
    """Return the result of the given runs, in the form that the module's docstring describes."""
    runs = [open_run(name) for name in names]
    cells = [_complete(run, scored_cells(run)) for run in runs]
    planned = [c for run, own in zip(runs, cells, strict=True) for c in _judged(run, own)]
    if not planned:
        raise SystemExit(f"no planned comparison in {', '.join(names)}")
    rows = [row for run, own in zip(runs, cells, strict=True) for row in _rows(run, own)]
    students = [entry for run in runs for entry in _students(run)]
    return {
        "made_by": join(["python", "-m", "tools.result", *(run.name for run in runs), "--output", output]),
        "runs": [_run(run, own) for run, own in zip(runs, cells, strict=True)],
        "students": {name: facts for name, facts in reversed(students)},  # the first run with a name wins
        "comparisons": [_comparison(c) for c in planned],
        "scores": [_score(row) for row in rows],
        "gates": list(_gates(planned, rows)),
        "doses": list(_doses(runs, rows)),
        "example": list(example_lines(runs[0], contrast_result(planned, cells[0].values()), cells[0])),
    }


def _conditions(named: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the scores on new figures of runs with another catalog, in one partition."""
    for name, _, run_name in (text.partition("=") for text in named):
        run = open_run(run_name)
        for row in _rows(run, _complete(run, scored_cells(run))):
            if row.setting == "new-figures":
                yield {"condition": name, "student": row.student, "k": row.k, "one_try": row.score("one try")}


def _complete(run: Run, cells: Cells) -> Cells:
    """Return the cells under the first grader; raise an error if a text is missing or not graded."""
    grader = next(iter(cells)).grader
    own = {key: cell for key, cell in cells.items() if key.grader == grader}
    for key, cell in own.items():
        if not all(texts and None not in texts for texts in cell.values(FULL_MARKS)):
            raise SystemExit(f"{run.path} is not finished: {key.student}, {key.setting}, k = {key.k}")
    return own


def _judged(run: Run, cells: Cells) -> list[JudgedContrast]:
    found = judged_contrasts([run], comparable_in(run, cells), cells)
    plans = [c for step in run.experiment.steps for c in getattr(step, "contrasts", [])]
    partitions = {v.partition for v in run.experiment.variants.values()}
    if len(found) < len(plans) or any(len(c.by_partition) < len(partitions) for c in found):
        raise SystemExit(f"{run.path} is not finished: a planned comparison lacks data")
    return found


def _rows(run: Run, cells: Cells) -> list[Row]:
    variants = run.experiment.variants
    rows: dict[tuple[Any, ...], Row] = {}
    for key, cell in cells.items():
        model = key.student.removesuffix("-joined")  # the reference texts joined from a model share its variants
        variant, parts = variants.get(model), label_parts(key.setting)
        student, values = (variant.family, variant.values) if variant else (model, {})
        student += key.student.removeprefix(model)
        row = Row(run.name, student, tuple(values.items()), parts.setting, key.k, defaultdict(list))
        partition = parts.partition or (variant and variant.partition) or str(run.fact("partition"))
        rows.setdefault((student, row.values, parts.setting, key.k), row).cells[partition].append(cell)
    return list(rows.values())


def _score(row: Row) -> dict[str, Any]:
    cells = [cell for own in row.cells.values() for cell in own]
    return {
        "run": row.run,
        "student": row.student,
        "values": dict(row.values),
        "setting": row.setting,
        "k": row.k,
        "partitions": len(row.cells),
        "combinations": sum(len(cell.combinations) for cell in cells),
        "generations": max(len(texts) for cell in cells for texts in cell.points),
        "one_try": row.score("one try"),
        "best": row.score("best"),
    }


def _run(run: Run, cells: Cells) -> dict[str, Any]:
    variants = run.experiment.variants.values()
    return {
        "name": run.name,
        "command": join(["skillmix", "run", f"experiments/{run.name}.yaml"]),
        "partitions": list(dict.fromkeys(v.partition for v in variants if v.partition)) or [run.fact("partition")],
        "seeds": list(dict.fromkeys(v.seed for v in variants if v.seed is not None)) or [run.seed],
        "grader": next(iter(cells)).grader,
        "texts": sum(len(texts) for cell in cells.values() for texts in cell.points),
    }


def _students(run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the trained students by their names in the experiment file, as of the first partition and seed."""
    sets = [read_dataset_file(file.parent, strict=True) for file in run.path.glob(f"*/dataset/{LINEAGE_FILE}")]
    texts = {file.hash: file.counts.k for file in sets if file is not None}
    seen = set()
    for step in run.experiment.steps:
        variant = run.experiment.variants.get(step.name)
        name = _named(variant.family, variant.values) if variant else step.name
        about = read_model_file(run.step(step.name) / "model") if step.stage == "train" and name not in seen else None
        if about is None:
            continue
        seen.add(name)
        counts: dict[str, int] = defaultdict(int)
        for data in about.dataset:
            for k, number in texts.get(data.hash, {}).items():
                counts[str(k)] += number
        yield name, {"weights": parameters_in(run.step(step.name) / "model"), "texts": counts}


def _named(family: str, values: Mapping[str, Any]) -> str:
    return f"{family} ({', '.join(f'{name} {value}' for name, value in values.items())})" if values else family


def _comparison(c: JudgedContrast) -> dict[str, Any]:
    plan, found = c.contrast, c.judged.gain
    return {
        "title": c.title,
        "claim": plan.claim,
        "condition": plan.condition,
        "student": plan.student,
        "setting": plan.setting,
        "k": plan.k,
        "against": dict(zip(("student", "setting", "k"), plan.other, strict=True)),
        "value": c.value,
        "against_value": c.against,
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "p": c.judged.p_corrected,
        "words": c.judged.words,
        "verdict": c.verdict,
        "by_partition": [{"partition": p, "value": v, "against_value": a} for p, v, a in c.by_partition],
    }


def _gates(planned: Sequence[JudgedContrast], rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    compared = [name for c in planned for name in dict.fromkeys((c.contrast.student, c.contrast.other[0]))]
    richest = planned[0].contrast.student
    for row in rows:
        is_trained = (row.student, row.setting, row.k) == (richest, "train", 2)
        if row.student not in compared or row.values or not (is_trained or row.k == 1):
            continue
        least, value = LEAST_TRAINED if is_trained else LEAST_AT_1, row.score("one try")["value"] or 0.0
        about = {"student": row.student, "setting": row.setting, "k": row.k}
        yield about | {"value": value, "least": least, "holds": value >= least}


def _doses(runs: Sequence[Run], rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield doses for each base: first students without new figures in composed texts, then `matrix: {dose: …}`."""
    chosen = [row for row in rows if (row.setting, row.k) == ("new-figures", 2)]
    dosed = [row for row in chosen if "dose" in dict(row.values)]
    if not dosed:
        return
    partitions = list(dosed[0].cells)
    run = next(run for run in runs if run.name == dosed[0].run)
    new = run.catalog.partition(partitions[0]).side("new-figures").skills
    figures = len({run.catalog.figure_of[skill] for skill in new})
    for base, (others, zero) in product(("", "random-"), (("with", "m123"), ("without", "m1"))):
        curve = [row for row in chosen if row.student == base + zero and not row.values]
        curve += sorted((row for row in dosed if row.student == base + others), key=lambda r: dict(r.values)["dose"])
        for row in curve if len(curve) > 1 else ():
            about = {"others": others, "student": row.student, "examples": dict(row.values).get("dose", 0) // figures}
            yield about | {"partitions": len(partitions)} | row.score("one try", only=partitions)


def main() -> None:
    """Write the result of the runs listed on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="names or folders of finished runs")
    parser.add_argument("--condition", metavar="NAME=RUN", action="append", default=[], help="a run with one change")
    parser.add_argument("--checks", type=Path, help="the output of tools/attacks.py")
    parser.add_argument("--output", required=True, type=Path, help="the result file, such as results/composition.json")
    options = parser.parse_args()
    document = result_of(options.runs, output=options.output.as_posix())
    if options.condition:
        document["conditions"] = list(_conditions(options.condition))
    more = [f"--condition={text}" for text in options.condition]
    more += [f"--checks={options.checks.name}"] if options.checks else []
    document["made_by"] = " ".join([document["made_by"], *more])
    if options.checks:
        document["checks"] = json.loads(options.checks.read_text(encoding="utf-8"))
    options.output.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
