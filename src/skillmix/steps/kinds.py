"""The kinds of step that make no calls, and the table of all kinds of step.

A train step writes a checkpoint into its folder in the run. Steps that read a whole run come last: annotate steps, in
which people grade texts and which report missing answers instead of waiting for them, graders steps, which write grader
cards, and report steps.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from shlex import join
from typing import Any, Final

from skillmix.calls import PEOPLE, is_human
from skillmix.catalog.catalog import Catalog
from skillmix.errors import UserError
from skillmix.experiment.costs import training_hours, training_tokens
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.step_base import Step, student_name
from skillmix.experiment.steps import AnnotateStep, GradersStep, ReportStep
from skillmix.experiment.train_step import DEFAULT_STEPS, TrainStep
from skillmix.files import FolderKind, require_replaceable, write_whole
from skillmix.hashing import short_id
from skillmix.models.checkpoints import Checkpoint
from skillmix.models.lineage_files import LINEAGE_FILE, read_model_file
from skillmix.models.local.model import MODELS, free_device_memory
from skillmix.models.servers.started import SERVERS
from skillmix.models.specs import LOCAL_PACKAGES
from skillmix.prompts.prompt_set import load_prompts
from skillmix.render import listed, plural, wrapped
from skillmix.runs.calling import StepContext
from skillmix.runs.people import raters_of
from skillmix.runs.progress import NO_PROGRESS, Bound, RunProgress, Work, say
from skillmix.runs.rows import StepRecord
from skillmix.runs.run import Run, open_run
from skillmix.runs.students import model_folder, settings_for, with_trained
from skillmix.runs.verdicts import PERSON, code_version
from skillmix.scores.lineages import lineage_of_student
from skillmix.steps.calls import CallKind, DatasetKind
from skillmix.steps.estimates import CallEstimate, EstimateBasis
from skillmix.steps.step_kind import Inputs, RunResult, StepInputs, StepKind, Trained, of_settings
from skillmix.training.data.replay import state_of
from skillmix.training.job import MODEL, Job, check_base, check_data, check_replay, is_first_rank, job_of, read_lessons
from skillmix.training.log import TRAINING_LOG
from skillmix.validation.rater_answers import require_same_rater, stored_answers

_REPLAY: Final = "its replay texts"
_JSON_FILE: Final = "cards.json"
_TEXT_FILE: Final = "cards.txt"
_CARDS: Final = FolderKind(
    "a folder of grader cards", lambda folder: (folder / _JSON_FILE).is_file(), (_JSON_FILE, _TEXT_FILE, "*.partial")
)


class TrainKind(StepKind[TrainStep]):
    """Fine-tune a model on data sets."""

    def check(self, step: TrainStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Reject missing weights, data or replay texts, and a folder that contains another model or training run."""
        check_data(step)
        folder = model_folder(run, step.name)
        file = read_model_file(folder, strict=True)
        if file is None:
            require_replaceable(folder, MODEL)
            check_replay(step)
            stored = _begun(step, run)
        else:
            recipe = file.document.get("recipe")
            stored = {f"its {name}": value for name, value in recipe.items()} if isinstance(recipe, dict) else {}
            stored |= {"its seed": file.document["seed"]} if "seed" in file.document else {}
        now = _of_recipe(step, seed=experiment.seed if step.seed is None else step.seed)
        if changed := _differences(stored, now):
            raise _was_other(run.step(step.name), changed)
        check_base(step, experiment, run)

    def estimates(self, step: TrainStep, basis: EstimateBasis) -> list[CallEstimate]:
        """Estimate the GPU hours."""
        model = settings_for(basis.experiment, student_name(step.base)).model
        tokens = training_tokens(step, conversations=_conversations(step, basis.experiment))
        hours = training_hours(step, model, tokens)
        return [CallEstimate(step.name, step.base, 0, tokens, 0, 0.0, hours, role="training")]

    def work(self, step: TrainStep, experiment: Experiment, catalog: Catalog, run: Run) -> Work:
        """Return the work in optimizer steps; their number is unknown until the conversations can be counted."""
        is_over = (model_folder(run, step.name) / LINEAGE_FILE).is_file()
        total: int | None = step.steps or DEFAULT_STEPS
        if step.epochs is not None:
            conversations = _conversations(step, experiment)
            total = None if conversations is None else ceil(step.epochs * conversations / step.batch)
        bound: Bound = "at most" if step.patience is not None else "about"
        return Work(step.name, "training", total, bound, is_over=is_over)

    def inputs(self, step: TrainStep, source: StepInputs) -> Inputs | None:
        """Return the recipe, the seed, the weights of the base and the conversations of the data."""
        try:
            return _of_job(job_of(source.experiment, step, source.run))
        except UserError:
            return None  # the step reports missing files

    def made(self, step: TrainStep, run: Run, result: RunResult) -> dict[str, Any]:
        """Return the identity of the model."""
        file = read_model_file(model_folder(run, step.name), strict=True)
        return {"identity": file.identity if file else None}

    def take(self, step: TrainStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """Add the model to the result if it is still in its folder."""
        folder = model_folder(run, step.name)
        file = read_model_file(folder, strict=True)
        if file is None or file.identity != made["identity"]:
            return None
        result.trained[step.name] = Trained(step.name, folder, was_there=True)
        return f"the model is in {folder}"

    def run(self, step: TrainStep, context: StepContext, result: RunResult) -> bool:
        """Train the model from the start, or from its last checkpoint."""
        if context.cluster is not None:
            context.cluster.end_workers()  # this process may need their GPUs
        result.trained[step.name] = train_step(context.experiment, step, context.run, context.progress)
        context.progress.end(step.name)
        return True


def _conversations(step: TrainStep, experiment: Experiment) -> int | None:
    """Count the conversations of data files and those that dataset steps will produce; None if unknown."""
    planned = {other.name: other.planned_texts for other in experiment.steps}
    total = 0
    for name in step.data:
        rows = planned.get(name)
        if "/" in name:
            path = Path(name).expanduser()
            file = path / "train.jsonl" if path.is_dir() else path
            with suppress(OSError), file.open("rb") as lines:
                rows = sum(1 for _ in lines)
        if rows is None:
            return None
        total += rows
    return total


def _of_recipe(step: TrainStep, *, seed: int) -> Inputs:
    return {"its seed": seed, **{f"its {name}": value for name, value in step.decisive().items()}}


def _of_job(job: Job) -> Inputs:
    data = {f"the data {source.name}": source.hash for source in job.sources}
    return {**_of_recipe(job.step, seed=job.seed), "its base": job.base_hash(), **data}


def _begun(step: TrainStep, run: Run) -> Inputs:
    """Return the recorded inputs of an unfinished training run; empty if there is none or its folder was removed."""
    record = run.state.steps.get(step.name)
    is_begun = record is not None and record.result is None and run.step(step.name).exists()
    return dict(record.inputs) if record is not None and is_begun else {}


def _differences(stored: Inputs, now: Inputs) -> list[str]:
    """Return the names of inputs that differ, after converting tuples to lists as JSON does."""
    plain = json.loads(json.dumps(now))
    return [name for name in plain if name in stored and stored[name] != plain[name]]


def _was_other(folder: Path, changed: Sequence[str] = ()) -> UserError:
    names = f": {listed(changed)} changed" if changed else ""
    return UserError(
        f"{folder} holds a model that was trained with other settings or data{names}.",
        hint="Remove the folder to train again, or rename the step.",
    )


def train_step(
    experiment: Experiment,
    step: TrainStep,
    run: Run,
    progress: RunProgress = NO_PROGRESS,
) -> Trained:
    """Train the model of a step unless it exists, resuming from the last checkpoint if there is one."""
    job = job_of(experiment, step, run)
    identity = job.identity()
    file = read_model_file(job.model_folder, strict=True)
    if file is not None:
        if file.identity != identity:
            raise _was_other(job.model_folder)
        progress.end(step.name, f"{step.name}: the model is in {job.model_folder}")
        return Trained(step.name, job.model_folder, was_there=True)
    require_replaceable(job.model_folder, MODEL)
    if is_first_rank():
        _begin(job, run)
    lessons = read_lessons(job.sources, validation_share=step.validation_share)
    from skillmix.training.job_run import run_training

    SERVERS.stop()
    MODELS.drop()
    try:
        run_training(job, lessons, progress)
    finally:
        free_device_memory()  # later steps may load models for generation
    return Trained(step.name, job.model_folder, was_there=False)


def check_trainable(step: TrainStep, checkpoint: Checkpoint, run: Run) -> None:
    """Reject a base whose chat template allows no loss mask or whose layers cannot be trained; read no weights.

    Nothing is checked if the model exists, or if the weights or a package are missing on this machine.
    """
    is_trained = read_model_file(model_folder(run, step.name)) is not None
    if is_trained or not checkpoint.bytes() or not all(map(find_spec, packages_for_training(step))):
        return
    from skillmix.training.job_run import check_student

    check_student(checkpoint, step)


def packages_for_training(step: TrainStep) -> list[str]:
    """Return the packages that a step needs to train."""
    return [*LOCAL_PACKAGES, *(["peft"] if step.lora else [])]


def _begin(job: Job, run: Run) -> None:
    """Record the inputs of a training run, or reject a resumption with other inputs."""
    sources = [Path(source).expanduser() for source in job.step.replay.sources] if job.step.replay else []
    inputs = {**_of_job(job), _REPLAY: state_of(sources) if sources else []}
    changed = _differences(_begun(job.step, run), inputs)
    if changed == [_REPLAY]:
        hint = "Restore the original files, or remove the folder to train again."
        raise UserError(f"The training run in {job.folder} started with other replay files.", hint=hint)
    if changed:
        raise _was_other(job.folder, changed)
    job.folder.mkdir(parents=True, exist_ok=True)
    run.record_step(job.step.name, StepRecord(inputs, None))


def of_run(run: Run, *, with_people: bool = True) -> Inputs | None:
    """Return the inputs of scores, cards and reports; None for an import, or if a part cannot be read.

    The numbers of calls and attempts suffice to detect changed calls, because a call changes only with a new attempt.
    """
    if run.is_imported:
        return None
    try:
        experiment, catalog = with_trained(run.known_experiment, run), run.catalog
        used = {experiment.prompts, *(s.prompts for s in experiment.students.values() if s.prompts)}
        lineages = {name: lineage_of_student(experiment, name) for name in experiment.students}
        with run.read() as journal:
            calls = journal.extent()
    except UserError:
        return None
    made = {step.name: run.finished(step.name) for step in experiment.steps if not step.reads_whole_run}
    logs = [run.step(name) / TRAINING_LOG for name in made]
    people = {rater: len(stored_answers(run.people, rater)) for rater in raters_of(run.people)} if with_people else {}
    return {
        "its experiment": short_id(run.document, [e.model_dump(mode="json") for e in run.earlier]),
        "what its draws skip": short_id({step: sorted(ids) for step, ids in run.excluded.items()}),
        "its calls": calls,
        "the answers of people": people,
        "its data sets and models": short_id({name: record and [record.result] for name, record in made.items()}),
        "the seconds of its steps": run.step_seconds,
        "its training logs": short_id([log.read_text(encoding="utf-8") for log in logs if log.is_file()]),
        "the lineages of its students": {name: one.identity for name, one in lineages.items() if one is not None},
        "its catalog": catalog.content_hash(),
        "the words of the topics": short_id({t: list(map(list, words)) for t, words in catalog.vocabulary.items()}),
        "its prompt sets": {name: load_prompts(name).content_hash() for name in sorted(used)},
        "the code that reads replies and checks texts": [code_version(), catalog.code.hash if catalog.code else None],
    }


class AnnotateKind(StepKind[AnnotateStep]):
    """Choose texts for people, count their answers, and let simulated raters answer."""

    def check(self, step: AnnotateStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Raise an error if a rater's name belongs to another rater, or if the path of the step's folder is a file."""
        for rater in step.raters:
            require_same_rater(run.people, rater, step.simulated.get(rater, PERSON))
        folder = run.step(step.name)
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file.", hint="Move it; the step needs a folder there.")

    def inputs(self, step: AnnotateStep, source: StepInputs) -> Inputs | None:
        """Return the step's settings, and the contents of the run except people's answers."""
        state = of_run(source.run, with_people=False)
        return None if state is None else of_settings(step) | {"the texts of the run": state}

    def made(self, step: AnnotateStep, run: Run, result: RunResult) -> dict[str, Any]:
        """Return the number of answers from each rater."""
        return {"answers": {rater: len(stored_answers(run.people, rater)) for rater in step.raters}}

    def take(self, step: AnnotateStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """Describe the answers if their numbers still match the record."""
        is_same = made["answers"] == self.made(step, run, result)["answers"]
        return f"{plural(len(step.raters), 'rater')} answered all texts" if is_same else None

    def run(self, step: AnnotateStep, context: StepContext, result: RunResult) -> bool:
        """Store simulated raters' answers, count all answers, and write spreadsheets for people with texts left."""
        if result.stopped is None:
            missing = _missing_answers(step, context.run)
        else:  # the sample depends on all texts
            missing = ["people can start when all texts are written"]
        if missing:
            result.waiting[step.name] = missing
        return True


def _missing_answers(step: AnnotateStep, run: Run) -> list[str]:
    """Let simulated raters answer, write spreadsheets for people, and describe the missing answers."""
    from skillmix.validation.spreadsheet import write_spreadsheet
    from skillmix.validation.task import NothingToRead, answer_by_script, step_progress, step_task

    try:
        task = step_task(step, run)
    except NothingToRead as error:
        return [error.message]
    if answer_by_script(step, task):
        task = step_task(step, run)
    name = run.name if run.path == Path("runs") / run.name else str(run.path)
    missing = []
    for one in step_progress(step, task):
        say(f"{step.name}: {one.in_words}")
        if one.left:
            command = ["skillmix", "annotate", name, "--step", step.name, "--rater", one.rater]
            file = run.step(step.name) / f"{one.rater}.csv"
            left = f"{one.rater} has {one.left} of {plural(one.texts, 'text')} left"
            file.parent.mkdir(parents=True, exist_ok=True)
            if write_spreadsheet(task, one.rater, file):
                missing.append(f"{left}: {join(command)} serves the page; or fill {file} and import it")
            else:
                imports = join([*command, "--import", str(file)])
                missing.append(f"{left}: {file} has votes that are not stored: {imports}")
    return missing


class GradersKind(StepKind[GradersStep]):
    """Write the cards of all graders, as JSON and as text, into the step's folder."""

    def check(self, step: GradersStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Raise an error if the step's folder contains other files."""
        require_replaceable(run.step(step.name), _CARDS)

    def inputs(self, step: GradersStep, source: StepInputs) -> Inputs | None:
        """Return the step's settings and the contents of the run."""
        state = of_run(source.run)
        return None if state is None else of_settings(step) | {"the run": state}

    def take(self, step: GradersStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """Describe where the cards are; return None if they are missing."""
        is_there = all((run.step(step.name) / name).is_file() for name in (_JSON_FILE, _TEXT_FILE))
        return f"the cards in {run.step(step.name)} are up to date" if is_there else None

    def run(self, step: GradersStep, context: StepContext, result: RunResult) -> bool:
        """Write the cards, or describe what is missing."""
        missing = _write_cards(step, context.run)
        if missing is not None:
            result.waiting[step.name] = [missing]
        return True


def _write_cards(step: GradersStep, run: Run) -> str | None:
    """Write the cards of a run into the step's folder, or describe what is missing."""
    from skillmix.scores import grader_cards as texts
    from skillmix.scores.grader_cards import run_cards

    try:
        cards = run_cards([run], truth=step.truth, rules=step.rules)
    except UserError as error:  # the reference has no decisions yet
        if step.truth == PEOPLE:
            return "nobody has answered a question yet"
        return f"{step.truth} has not answered a question yet" if is_human(step.truth or "") else error.message
    if not cards:
        return "there are no graded texts"
    folder = run.step(step.name)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [texts.card_text(card, wide=True) for card in cards]
    parts += [wrapped(texts.NOTE), wrapped(texts.CORRECTED_NOTE)]
    write_whole(folder / _TEXT_FILE, "\n\n".join(parts) + "\n")
    as_json = json.dumps(texts.cards_as_json(cards), ensure_ascii=False, indent=1)
    write_whole(folder / _JSON_FILE, as_json + "\n")
    for card in cards:
        say(f"{step.name}: {texts.card_title(card)}")
    say(texts.short_table(cards))
    say(f"{step.name}: the cards are in {folder / _TEXT_FILE}")
    return None


class ReportKind(StepKind[ReportStep]):
    """Write tables, figures and pages about all earlier steps."""

    def check(self, step: ReportStep, experiment: Experiment, catalog: Catalog, run: Run) -> None:
        """Raise an error if an unrelated folder is at the report's path, or if one of the other runs is missing."""
        from skillmix.report.records import REPORT

        require_replaceable(run.path / "report", REPORT)
        for name in step.runs:
            open_run(name)

    def inputs(self, step: ReportStep, source: StepInputs) -> Inputs | None:
        """Return the step's settings and the contents of the runs that the report shows."""
        states = {run.name: of_run(run) for run in (source.run, *map(open_run, step.runs))}
        if None in states.values():
            return None
        return of_settings(step) | {f"the run {name}": state for name, state in states.items()}

    def take(self, step: ReportStep, made: Mapping[str, Any], run: Run, result: RunResult) -> str | None:
        """Add the page to the result; return None if it is missing."""
        if not (run.path / "report" / "index.html").is_file():
            return None
        result.reports.append(run.path / "report" / "index.html")
        return f"the report in {run.path / 'report'} is up to date"

    def run(self, step: ReportStep, context: StepContext, result: RunResult) -> bool:
        """Write the report."""
        from skillmix.report.write import report_step

        result.reports.append(report_step(context.experiment, step, context.run).page)
        return True


_CALLS: Final = CallKind()
_KINDS: Final[Mapping[str, StepKind[Any]]] = {
    "evaluate": _CALLS,
    "generate": _CALLS,
    "grade": _CALLS,
    "dataset": DatasetKind(),
    "train": TrainKind(),
    "annotate": AnnotateKind(),
    "graders": GradersKind(),
    "report": ReportKind(),
}
"""The operations for each kind of step, by the step's `stage`."""


def kind_of(step: Step) -> StepKind[Any]:
    """Return the checks, estimates and execution that apply to a step."""
    return _KINDS[step.stage]
