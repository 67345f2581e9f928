"""Write a result file from a finished run: `python -m tools.result RUN --title TEXT … --output FILE`.

A result file is a JSON object, and `tools/readme.py` makes the headline of the README and docs/results.md from it:

- `title` and `finding`: the title of the page, and the finding in two or three sentences (a test looks for each of its
  numbers among the scores and the findings);
- `about` and `command`: a paragraph about the experiment, and the command that ran it;
- `graders`: for each grader its `model`, and whether it also chose the texts of a data set (`chose_texts`);
- `scores`: what `skillmix scores --sets --json` prints;
- `findings`: for each finding of the report its `claim`, `setting`, `grader`, `verdict` and `sentence`;
- `data`: for each tuned student the number of texts by k in its data sets.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from skillmix.models.lineage_files import LINEAGE_FILE, read_dataset_file
from skillmix.report.archive import Archive
from skillmix.report.page import claim_sentence
from skillmix.report.records import by_key
from skillmix.report.run_reading import RunReading, read_run
from skillmix.runs.run import Run, open_run
from skillmix.scores.findings import findings
from skillmix.scores.scoring import run_scores
from skillmix.scores.verdicts.main_result import CLAIM_TITLES


def result_of(name: str, *, words: Mapping[str, str]) -> dict[str, Any]:
    """The result of a run, in the form that the module describes; `words` are the parts that a person writes."""
    run = open_run(name)
    reading = read_run(run, rules=None, archive=Archive(lambda file, content: None))
    return {
        **words,
        "graders": graders_of(run),
        "scores": [score.json_row() for score in run_scores(run)],
        "findings": list(findings_of(reading)),
        "data": data_of(run, reading),
    }


def graders_of(run: Run) -> dict[str, dict[str, object]]:
    """Each grader with its model, and whether it chose texts of a data set."""
    choosing = {name for step in run.experiment.steps if step.stage == "dataset" for name in step.grader_names}
    settings = run.experiment.graders.items()
    return {name: {"model": grader.model, "chose_texts": name in choosing} for name, grader in settings}


def findings_of(reading: RunReading) -> Iterator[dict[str, object]]:
    """The findings of the report, with their sentences."""
    cells = by_key(reading.cells)
    for finding in findings(reading.contenders, cells):
        if finding.claim == "planned":
            continue
        yield {
            "claim": CLAIM_TITLES[finding.claim],
            "setting": finding.setting,
            "grader": finding.grader,
            "verdict": finding.verdict,
            "sentence": claim_sentence(finding, cells),
        }


def data_of(run: Run, reading: RunReading) -> dict[str, dict[str, int]]:
    """The texts by k in the data of each tuned student; only data sets that the run made are known."""
    folders = [file.parent for file in run.path.glob(f"*/dataset/{LINEAGE_FILE}")]
    files = [file for folder in folders if (file := read_dataset_file(folder, strict=True)) is not None]
    by_hash = {file.hash: file.counts.k for file in files}
    counts: dict[str, dict[str, int]] = {}
    for student, lineage in reading.lineages.items():
        texts = Counter[str]()
        for dataset in lineage.datasets:
            texts.update(by_hash.get(dataset, {}))
        if texts:
            counts[student] = {k: texts[k] for k in sorted(texts, key=int)}
    return counts


def main() -> None:
    """Write the result of the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--title", required=True, help="the title of the page")
    parser.add_argument("--finding", required=True, help="the finding in two or three sentences")
    parser.add_argument("--about", required=True, help="a paragraph about the experiment")
    parser.add_argument("--command", required=True, help="the command that ran it")
    parser.add_argument("--output", required=True, type=Path, help="the result file, such as results/self-taught.json")
    options = parser.parse_args()
    words = {name: getattr(options, name) for name in ("title", "finding", "about", "command")}
    document = result_of(options.run, words=words)
    options.output.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
