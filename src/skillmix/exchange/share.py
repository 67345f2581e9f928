"""`skillmix share` writes each student's model card and evaluation results, in the formats of the Hugging Face Hub."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any, Final

import yaml

from skillmix.calls import as_name
from skillmix.errors import UserError
from skillmix.files import FolderKind, replacing
from skillmix.grading.points import FULL_MARKS, METRICS
from skillmix.models.lineage import lineage_of
from skillmix.models.specs import parse_spec, provider_of
from skillmix.render import did_you_mean, name_hint
from skillmix.render import share as share_text
from skillmix.runs.run import Run, open_run
from skillmix.scores.cells import CellScore
from skillmix.scores.scoring import run_scores
from skillmix.scores.table import score_table

_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?<!\.)/[A-Za-z0-9_-][A-Za-z0-9._-]*(?<!\.)")
_HOSTS: Final = ("openai", "anthropic", "google")
"""Prefixes of Inspect's model names that identify the owners of the models."""
_ENGINES: Final = ("hf", "vllm", "sglang")  # prefixes in Inspect's model names that are followed by the id of a model
_MARK: Final = "skillmix-share"
_NOTE: Final = "This folder was made by `skillmix share`, and is replaced by the next one.\n"


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """The files that were written, the number of scores with a value, and students without a score."""

    folder: str
    students: list[str]
    results: int
    files: list[str]
    left_out: list[str]

    def as_json(self) -> dict[str, object]:
        """Return the output of `share --json`."""
        return asdict(self)


def share(
    run_name: str,
    output: Path,
    *,
    ids: Sequence[str] = (),
    students: Sequence[str] = (),
    benchmark: str | None = None,
    source: str | None = None,
    rules: str | None = None,
) -> SharedFiles:
    """Write the files of every student that has a score; the new folder replaces an earlier one completely.

    `ids` are public names in the form STUDENT=OWNER/NAME. `benchmark` is the benchmark's data set on the Hub, without
    which no files in `.eval_results/` are written, and `source` a page to which these files link.
    """
    run = open_run(run_name)
    if run.has_outcomes:
        raise UserError(
            f"The graders of {run.name} give outcomes instead of points, but the Hub's formats contain only scores.",
            hint=f"Use skillmix export {run.name}.",
        )
    if benchmark is not None and not is_model_id(benchmark):
        raise UserError(f"--benchmark {benchmark} is not the id of a data set.", hint="Write --benchmark OWNER/NAME.")
    if source is not None and not source.startswith("https://"):
        raise UserError(f"--source {source} is not an https URL.", hint="Write --source https://HOST/PAGE.")
    scores = [score for score in run_scores(run, rules=rules) if score.sets == "all"]
    known = list(dict.fromkeys(score.student for score in scores))
    for name in students:
        if name not in known:
            hint = name_hint(name, known, otherwise=f"Students: {', '.join(known) or 'none'}.")
            raise UserError(f"There are no scores for the student {name!r}.", hint=hint)
    wanted = [name for name in known if not students or name in students]
    specs = {} if run.is_imported else {n: one.model for n, one in run.known_experiment.students.items()}
    models = _public_names({name: specs.get(name) for name in wanted}, ids)
    by_student = {name: [score for score in scores if score.student == name] for name in wanted}
    with_value = {name: own for name, own in by_student.items() if any(score.value is not None for score in own)}
    if not with_value:
        hint = f"See what is missing: skillmix status {run.name}."
        raise UserError(f"No student of {run.name} has a score.", hint=hint)
    hub_folder = FolderKind(
        "a folder of skillmix share",
        lambda folder: (folder / _MARK).is_file() and (folder / _MARK).read_bytes() == _NOTE.encode(),
        (_MARK, "hub/*/README.md", "hub/*.yaml"),
    )
    with replacing(output, hub_folder) as folder:
        folder.mkdir()
        (folder / _MARK).write_text(_NOTE, encoding="utf-8")
        for student, own in with_value.items():
            repository = folder / "hub" / student
            repository.mkdir(parents=True)
            spec = specs.get(student, "")
            is_checkpoint = spec.startswith("inspect:hf/") or (spec != "" and provider_of(spec).is_engine)
            base = _base_of(run, student, models)
            card = model_card(models[student], own, is_checkpoint=is_checkpoint, base=base, benchmark=benchmark)
            (repository / "README.md").write_text(card, encoding="utf-8")
            for grader in dict.fromkeys(score.grader for score in own) if benchmark else ():
                graded = [score for score in own if score.grader == grader]
                if entries := eval_results(graded, benchmark=str(benchmark), source=source):
                    file = repository / ".eval_results" / f"skillmix-{grader}.yaml"
                    file.parent.mkdir(exist_ok=True)
                    file.write_text(_as_yaml(entries), encoding="utf-8")
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return SharedFiles(
        folder=str(output),
        students=list(with_value),
        results=sum(score.value is not None for own in with_value.values() for score in own),
        files=[file for file in files if file != _MARK],
        left_out=[name for name in wanted if name not in with_value],
    )


def eval_results(scores: Sequence[CellScore], *, benchmark: str, source: str | None = None) -> list[dict[str, Any]]:
    """Return the entries of a file in `.eval_results/`: one grader's known full-marks score of each cell."""
    entries = []
    for score in scores:
        if score.metric != FULL_MARKS or score.value is None:
            continue
        task = f"{public_catalog(score.catalog)}_{score.setting}_k{score.k}".replace("-", "_")
        entry: dict[str, Any] = {"dataset": {"id": benchmark, "task_id": task}, "value": score.value}
        page = {"source": {"url": source, "name": "skillmix"}} if source else {}
        interval = "" if score.low is None else f", 95% interval {share_text(score.low)} to {share_text(score.high)}"
        complete = f"{score.complete} of {score.combinations} combinations"
        notes = f"full marks of the best text, {complete}{interval}; graded by {score.grader}"
        entries.append({**entry, **page, "notes": notes})
    return entries


def model_card(
    model: str,
    scores: Sequence[CellScore],
    *,
    is_checkpoint: bool,
    base: str | None = None,
    benchmark: str | None = None,
) -> str:
    """Return the README.md of a model's repository, with tags and scores in its header, and the scores in a table."""
    head: dict[str, Any] = {"pipeline_tag": "text-generation", "tags": ["skillmix", "skill-composition"]}
    head |= {"library_name": "transformers"} if is_checkpoint else {}
    head |= {"base_model": base} if base is not None else {}
    results = []
    for score in scores:
        if score.value is None:
            continue
        catalog = public_catalog(score.catalog)
        name = f"skillmix {catalog}, {score.setting}, k = {score.k}"
        label = f"{METRICS[score.metric].label}, graded by {score.grader}"
        task = {"type": "text-generation", "name": "skill composition"}
        dataset = {"type": benchmark or f"skillmix-{catalog}", "name": name}
        metrics = [{"type": score.metric, "name": label, "value": score.value}]
        results.append({"task": task, "dataset": dataset, "metrics": metrics})
    title = model.partition("/")[2]
    head["model-index"] = [{"name": title, "results": results}]
    return (
        f"---\n{_as_yaml(head)}---\n\n# {title}\n\n## Skill composition\n\n"
        "The share of combinations of k skills and a topic for which the model wrote a short text with full marks, "
        f"measured by skillmix, with 95% intervals:\n\n{score_table(scores)}\n"
    )


def _as_yaml(document: object) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)


def is_model_id(text: str) -> bool:
    """Return whether a text can be the id of a model or a data set on the Hub.

    >>> is_model_id("ours/tuned-135m"), is_model_id("tuned-135m"), is_model_id("a/.."), is_model_id("a/b/c")
    (True, False, False, False)
    """
    return _ID.fullmatch(text) is not None


def _public_names(specs: Mapping[str, str | None], options: Sequence[str]) -> dict[str, str]:
    """Return the public name of each student, from the options or from its model string."""
    names, faults = {}, []
    for option in options:
        student, _, names[student] = option.partition("=")
        if not is_model_id(names[student]):
            faults.append(f"--id {option} does not have the form STUDENT=OWNER/NAME.")
        elif student not in specs:
            faults.append(f"The run has no student {student!r}. {did_you_mean(student, specs)}".rstrip())
    if faults:
        raise UserError(" ".join(faults), hint=f"The students of the run are {', '.join(specs)}.")
    known = {student: names.get(student) or (public_name(spec) if spec else None) for student, spec in specs.items()}
    missing = [student for student, name in known.items() if name is None]
    if missing:
        raise UserError(
            f"The public name of {', '.join(missing)} is unknown.",
            hint=f"Add its id on the Hub: --id {missing[0]}=OWNER/NAME.",
        )
    return {student: name for student, name in known.items() if name is not None}


def public_name(text: str) -> str | None:
    """Return the public id in a model string; only a provider's own service identifies the owner of a model.

    >>> public_name("openai:gpt-4o"), public_name("openai:m@http://localhost:8000/v1")
    ('openai/gpt-4o', None)
    >>> public_name("inspect:vllm/meta-llama/Llama-3.1-8B"), public_name("inspect:mockllm/model")
    ('meta-llama/Llama-3.1-8B', None)
    """
    spec = parse_spec(text)
    model = None
    if spec.address is None and spec.provider == "inspect":
        prefix, _, rest = spec.name.partition("/")
        model = spec.name if prefix in _HOSTS else rest if prefix in _ENGINES else None
    elif spec.address is None and provider_of(spec).key is not None:
        model = f"{spec.provider}/{spec.name}"
    return model if model is not None and is_model_id(model) else None


def public_catalog(name: str | None) -> str:
    """Return the name of a catalog without its folders.

    >>> public_catalog("paper"), public_catalog("/home/me/my skills/"), public_catalog(None)
    ('paper', 'my-skills', 'unnamed')
    """
    return as_name(PurePath(name).name) if name else "unnamed"


def _base_of(run: Run, student: str, models: Mapping[str, str]) -> str | None:
    """Return the public name of the base of a tuned student, if the base is a student of the run."""
    if run.is_imported:
        return None
    students = run.known_experiment.students
    own = students.get(student)
    if own is not None and own.tuned_from is not None:
        return models.get(own.tuned_from)
    try:
        lineage = lineage_of(own.model if own is not None else f"local:{run.step(student) / 'model'}")
    except UserError:  # the weights may have been moved
        return None
    bases = [name for name, settings in students.items() if lineage is not None and settings.model == lineage.base]
    return next((models[name] for name in bases if name in models), None)
