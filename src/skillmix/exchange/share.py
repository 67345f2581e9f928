"""Write the cards of a run's students, the files of the hub, and records for Every Eval Ever."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from time import time
from typing import Any, Final, Literal

import yaml

from skillmix.errors import UserError
from skillmix.exchange.every_eval import (
    EvalRecords,
    Provenance,
    PublicModel,
    given_ids,
    is_model_id,
    public_catalog,
    public_models,
)
from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.models.lineage import lineage_of
from skillmix.render import name_hint
from skillmix.render import share as share_text
from skillmix.runs.folder_replacement import Kind, replacing
from skillmix.runs.run import Run, open_run
from skillmix.scores.cells import CellScore
from skillmix.scores.scoring import run_scores
from skillmix.scores.table import score_table

TAGS: Final = ("skillmix", "skill-composition")


def eval_results(scores: Sequence[CellScore], *, benchmark: str, source: str | None = None) -> list[dict[str, Any]]:
    """Entries of a file in `.eval_results/`: the full marks of every cell of one grader that has a value."""
    entries = []
    for score in scores:
        if score.metric != FULL_MARKS or score.value is None:
            continue
        task = f"{public_catalog(score.catalog)}_{score.setting}_k{score.k}".replace("-", "_")
        entry: dict[str, Any] = {"dataset": {"id": benchmark, "task_id": task}, "value": score.value}
        if source is not None:
            entry["source"] = {"url": source, "name": "skillmix"}
        interval = "" if score.low is None else f", 95 % interval {share_text(score.low)} to {share_text(score.high)}"
        complete = f"{score.complete} of {score.combinations} combinations"
        entry["notes"] = f"full marks of the best text, {complete}{interval}; graded by {score.grader}"
        entries.append(entry)
    return entries


def as_yaml(document: object) -> str:
    """YAML that any parser reads."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)


def model_card(
    model: PublicModel, scores: Sequence[CellScore], *, base: str | None = None, benchmark: str | None = None
) -> str:
    """The README.md of a model's repository: tags and scores in the head, and the same scores as a table."""
    known = [score for score in scores if score.value is not None]
    head: dict[str, Any] = {"pipeline_tag": "text-generation", "tags": list(TAGS)}
    if model.engine == "transformers":
        head["library_name"] = "transformers"
    if base is not None:
        head["base_model"] = base
    if known:
        head["model-index"] = [{"name": model.name, "results": [_index_entry(s, benchmark) for s in known]}]
    body = score_table(scores) if scores else "There are no scores."
    return (
        f"---\n{as_yaml(head)}---\n\n# {model.name}\n\n## Skill composition\n\n"
        "The share of combinations of k skills and a topic for which the model wrote a short text with full marks, "
        f"measured by skillmix, with 95 % intervals:\n\n{body}\n"
    )


def _index_entry(score: CellScore, benchmark: str | None) -> dict[str, Any]:
    """One score of the head; the hub shows name, value and data set."""
    catalog = public_catalog(score.catalog)
    name = f"skillmix {catalog}, {score.setting}, k = {score.k}"
    metric = {
        "type": score.metric,
        "name": f"{METRICS[score.metric].label}, graded by {score.grader}",
        "value": score.value,
    }
    return {
        "task": {"type": "text-generation", "name": "skill composition"},
        "dataset": {"type": benchmark or f"skillmix-{catalog}", "name": name},
        "metrics": [metric],
    }


Relationship = Literal["first_party", "third_party", "collaborative", "other"]
_MARK: Final = "skillmix-share"
_NOTE: Final = "This folder was made by `skillmix share`, and is replaced by the next one.\n"


def _is_marked(folder: Path) -> bool:
    try:
        return (folder / _MARK).read_text(encoding="utf-8") == _NOTE
    except (OSError, ValueError):
        return False


SHARED: Final = Kind(
    "a folder of skillmix share",
    _is_marked,
    (_MARK, "every_eval_ever/data/*.json", "every_eval_ever/data/*.jsonl", "hub/*/README.md", "hub/*.yaml"),
)


@dataclass(frozen=True, slots=True)
class ShareChoices:
    """What only the user knows, and what to write."""

    organization: str
    """Who publishes the records."""
    relationship: Relationship = "other"
    ids: Sequence[str] = ()
    """Public names as STUDENT=OWNER/NAME."""
    students: Sequence[str] = ()
    """Students to write; by default all."""
    benchmark: str | None = None
    """The data set on the hub that holds the benchmark; without it there are no files in `.eval_results/`."""
    source: str | None = None
    """Address of a page about the evaluation."""
    rules: str | None = None
    has_samples: bool = True


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """The files that were written."""

    folder: Path
    students: list[str]
    results: int
    samples: int
    files: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Students without a score."""

    def as_json(self) -> dict[str, object]:
        """What `share --json` prints."""
        return {
            "folder": str(self.folder),
            "students": self.students,
            "results": self.results,
            "samples": self.samples,
            "files": self.files,
            "left_out": self.left_out,
        }


def share(run_name: str, output: Path, choices: ShareChoices) -> SharedFiles:
    """Write the files of every student with a score; the folder replaces an earlier one as a whole."""
    run = open_run(run_name)
    if run.has_outcomes:
        raise UserError(f"The graders of {run.name} name outcomes, and the formats hold scores.", hint="Use export.")
    _check(choices)
    scores = [s for s in run_scores(run, rules=choices.rules) if s.sets == "all"]
    if choices.rules not in (None, run.experiment.rules) and choices.has_samples:
        raise UserError("The samples follow the run's own rules.", hint="Add --no-samples, or leave out --rules.")
    students = _students(scores, choices.students)
    models = _models(run, scores, students, choices.ids)
    with_value = [name for name in students if any(s.student == name and s.value is not None for s in scores)]
    if not with_value:
        raise UserError(
            f"No student of {run.name} has a score.", hint=f"skillmix status {run.name} shows what is missing."
        )
    provenance = Provenance(choices.organization, choices.relationship, choices.benchmark)
    results = samples = 0
    with replacing(output, SHARED) as folder:
        folder.mkdir()
        (folder / _MARK).write_text(_NOTE, encoding="utf-8")
        for student in with_value:
            own = [score for score in scores if score.student == student]
            records = EvalRecords(run, student, own, models, provenance)
            samples += _write_records(folder / "every_eval_ever", records, has_samples=choices.has_samples)
            results += sum(score.value is not None for score in own)
            _write_hub(folder / "hub" / student, run, own, models, choices)
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    left_out = [name for name in students if name not in with_value]
    return SharedFiles(output, with_value, results, samples, [file for file in files if file != _MARK], left_out)


def _check(choices: ShareChoices) -> None:
    if choices.benchmark is not None and not is_model_id(choices.benchmark):
        raise UserError(f"{choices.benchmark!r} is not a data set on the hub.", hint="Write --benchmark OWNER/NAME.")
    if choices.source is not None and not choices.source.startswith("https://"):
        raise UserError(f"{choices.source!r} is not the address of a page.", hint="It begins with https://.")
    if not choices.organization.strip() or not choices.organization.isprintable():
        raise UserError("The name of the organization is empty.", hint="Say who publishes the records.")


def _students(scores: Sequence[CellScore], wanted: Sequence[str]) -> list[str]:
    known = list(dict.fromkeys(score.student for score in scores))
    for name in wanted:
        if name not in known:
            raise UserError(
                f"There are no scores of a student {name!r}.",
                hint=name_hint(name, known, otherwise=f"Students: {', '.join(known) or 'none'}."),
            )
    return [name for name in known if not wanted or name in wanted]


def _models(
    run: Run, scores: Sequence[CellScore], students: Sequence[str], options: Sequence[str]
) -> dict[str, PublicModel]:
    """The public models of the students, and of the graders that ask a model."""
    experiment = None if run.is_imported else run.known_experiment
    settings = experiment.students if experiment else {}
    specs: dict[str, str | None] = {name: settings[name].model if name in settings else None for name in students}
    graders = dict.fromkeys(score.grader for score in scores if score.student in students)
    asked = {name: experiment.graders[name].asked for name in graders if experiment and name in experiment.graders}
    given = given_ids(options, [*specs, *asked])
    return public_models(specs, given) | public_models(
        {name: spec for name, spec in asked.items() if spec is not None and name not in specs}, given
    )


def _write_records(folder: Path, records: EvalRecords, *, has_samples: bool) -> int:
    """Write the file of results and, beside it, the samples; return the number of samples."""
    place = folder / records.folder
    place.mkdir(parents=True)
    described: dict[str, Any] | None = None
    rows = 0
    if has_samples:
        checksum = sha256()
        name = f"{records.uuid}_samples.jsonl"
        with (place / name).open("wb") as file:
            for row in records.sample_rows():
                line = json.dumps(row, ensure_ascii=True, allow_nan=False).encode() + b"\n"
                checksum.update(line)
                file.write(line)
                rows += 1
        described = {
            "format": "jsonl",
            "file_path": f"{records.folder}/{name}",
            "hash_algorithm": "sha256",
            "checksum": checksum.hexdigest(),
            "total_rows": rows,
        }
    aggregate = records.aggregate(described, made_at=time())
    text = json.dumps(aggregate, ensure_ascii=False, indent=1, allow_nan=False)
    (place / f"{records.uuid}.json").write_text(text + "\n", encoding="utf-8")
    return rows


def _write_hub(
    folder: Path, run: Run, scores: Sequence[CellScore], models: dict[str, PublicModel], choices: ShareChoices
) -> None:
    folder.mkdir(parents=True)
    student = scores[0].student
    base = _base_of(run, student, models)
    card = model_card(models[student], scores, base=base, benchmark=choices.benchmark)
    (folder / "README.md").write_text(card, encoding="utf-8")
    for grader in dict.fromkeys(score.grader for score in scores) if choices.benchmark else ():
        own = [score for score in scores if score.grader == grader]
        entries = eval_results(own, benchmark=str(choices.benchmark), source=choices.source)
        if entries:
            file = folder / ".eval_results" / f"skillmix-{grader}.yaml"
            file.parent.mkdir(exist_ok=True)
            file.write_text(as_yaml(entries), encoding="utf-8")


def _base_of(run: Run, student: str, models: dict[str, PublicModel]) -> str | None:
    """The public name of the model that a student was tuned from, if that model is a student of the run, too."""
    if run.is_imported:
        return None
    students = run.known_experiment.students
    own = students.get(student)
    if own is not None and own.tuned_from is not None:
        base = models.get(own.tuned_from)
        return base.id if base else None
    spec = own.model if own is not None else f"local:{run.step(student) / 'model'}"
    try:
        lineage = lineage_of(spec)
    except UserError:  # the weights may have been moved since
        return None
    if lineage is None:
        return None
    names = [name for name, settings in students.items() if settings.model == lineage.base and name in models]
    return models[names[0]].id if names else None
