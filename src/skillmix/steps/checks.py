"""Checks that precede any change of a run, so that a rejected experiment leaves the run unchanged."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Final, Protocol

from skillmix.calls import CallProblem
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import combination_of
from skillmix.datasets.leakage import usable_around
from skillmix.errors import UserError, errors_of, faults_error, refuse
from skillmix.experiment.costs import Price
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import Settings, cells_of, place_of, settings_by_model
from skillmix.experiment.step_base import JOINED, Step, student_name
from skillmix.experiment.steps import DatasetStep
from skillmix.experiment.train_step import CHAT_TEMPLATES, TrainStep
from skillmix.models.bundled import bundled_models
from skillmix.models.checkpoints import (
    Checkpoint,
    base_and_adapters,
    checkpoint_of,
    lacks_chat_template,
    positions_of,
)
from skillmix.models.hub import Kind, hub_folder, is_hub_id, is_missing, is_pinned, pinned
from skillmix.models.lineage_files import read_model_file
from skillmix.models.local.model import check_chat_template
from skillmix.models.servers.keys import servers_of
from skillmix.models.servers.started import require_server
from skillmix.models.shapes import POSITIONS, CopiedShape, ModelShape, shape_of
from skillmix.models.specs import ModelSpec, asked_model, open_model, parse_spec, provider_of
from skillmix.prompts.prompt_set import load_prompts
from skillmix.runs.batches.step_batches import opened_clients
from skillmix.runs.calling import StepContext, opened_models
from skillmix.runs.progress import say
from skillmix.runs.run import Run
from skillmix.runs.students import made_students, model_folder, require_trained, settings_for, with_trained
from skillmix.runs.verdicts import require_checkers
from skillmix.scores.lineages import check_students
from skillmix.steps.estimates import price_of_calls
from skillmix.steps.kinds import check_trainable, kind_of, packages_for_training
from skillmix.tracking import require_trackers


def check_packages(experiment: Experiment, steps: Sequence[Step], run: Run, *, calls_here: bool = True) -> None:
    """Raise an error that lists all packages that unfinished steps need but that are not installed.

    `calls_here` is false if other machines call the models.
    """
    needed: dict[str, set[str]] = {}
    """The extras of skillmix that install each package."""
    for step in (step for step in steps if run.finished(step.name) is None):
        if isinstance(step, TrainStep):
            is_open = read_model_file(model_folder(run, step.name)) is None
            packages = [(package, "train") for package in packages_for_training(step) if is_open]
        else:
            packages = [("pyarrow", "parquet")] if step.stage == "dataset" else []
        students = [name for name in step.student_names if name in experiment.students]
        for settings in settings_by_model(experiment, students, step.grader_names).values() if calls_here else ():
            packages += [(package, "local") for package in provider_of(str(settings.asked)).packages]
        for package, extra in packages:
            if find_spec(package) is None:
                needed.setdefault(package, set()).add(extra)
    if needed:
        extras = set().union(*needed.values())
        extras -= {"local", "parquet"} if "train" in extras else set()  # the extra train includes both
        install = f"pip install 'skillmix[{','.join(sorted(extras))}]'"
        raise UserError(f"{experiment.name} needs packages that are not installed: {', '.join(needed)}.", hint=install)


Checks = Iterator[Callable[[], object]]


def plan_checks(experiment: Experiment, catalog: Catalog, steps: Sequence[Step], run: Run) -> Checks:
    """Check an experiment's files, catalogs, prompts and checkpoints, without reading its journal or making calls.

    The prompts and draws of all steps are checked, because every reader of the run needs them.
    """
    yield lambda: check_code_graders(experiment, catalog, steps)
    yield lambda: _check_prompts(experiment, catalog)
    yield lambda: check_students(experiment)
    yield lambda: cells_of(experiment, catalog, usable_around(experiment, catalog, run.excluded))
    yield lambda: run.checked_document(experiment, catalog)
    yield from _local_model_checks(experiment, steps, run)


def pinned_experiment(experiment: Experiment, run: Run) -> Experiment:
    """Pin each Hub id to the commit that the run recorded, or to the newest commit if the id is new."""
    known: dict[str, str] = {}
    with suppress(UserError):  # the experiment of an older version may have obsolete keys, but no Hub ids
        stored = run.experiment if run.exists else experiment
        used: list[Settings] = [*stored.students.values(), *stored.graders.values()]
        names = [name for one in used for name in hub_ids(one.asked)]
        names += [name for step in stored.steps if isinstance(step, TrainStep) for name in step.data]
        known = {name.partition("@")[0]: name for name in names if is_pinned(name)}

    def pin(name: str, kind: Kind) -> str:
        if not is_hub_id(name):
            return name
        with suppress(UserError):  # the checks report unavailable ids together with other faults
            return known.get(name) or pinned(name, kind)
        return name

    def with_commits(model: str) -> str:
        asked = asked_model(model)
        if asked is None or not hub_ids(asked):
            return model
        base, adapters = base_and_adapters(parse_spec(asked))
        names = "+".join(pin(name, "model") for name in (base, *adapters))
        return f"{model.removesuffix(asked)}{parse_spec(asked).provider}:{names}"

    steps = [
        step.model_copy(update={"data": [pin(name, "dataset") for name in step.data]})
        if isinstance(step, TrainStep)
        else step
        for step in experiment.steps
    ]
    students = {n: s.model_copy(update={"model": with_commits(s.model)}) for n, s in experiment.students.items()}
    graders = {n: s.model_copy(update={"model": with_commits(s.model)}) for n, s in experiment.graders.items()}
    return experiment.model_copy(update={"students": students, "graders": graders, "steps": steps})


def hub_ids(asked: str | None) -> list[str]:
    """Return the Hub ids in a model string."""
    spec = None if asked is None else parse_spec(asked)
    if spec is None or not provider_of(spec).has_checkpoint:
        return []
    base, own_adapters = base_and_adapters(spec)
    return [name for name in (base, *own_adapters) if is_hub_id(name)]


def fetch_from_hub(experiment: Experiment, catalog: Catalog, steps: Sequence[Step], run: Run) -> None:
    """Download models and data sets that are not in the cache, if the other checks of the experiment pass."""
    settings: list[Settings] = [*experiment.students.values(), *experiment.graders.values()]
    wanted: dict[str, Kind] = dict.fromkeys((name for one in settings for name in hub_ids(one.asked)), "model")
    wanted |= dict.fromkeys(
        (name for s in steps if isinstance(s, TrainStep) for name in s.data if is_pinned(name)), "dataset"
    )
    missing = {name: kind for name, kind in wanted.items() if is_pinned(name) and is_missing(name, kind)}
    if missing:
        refuse(experiment.name, errors_of(plan_checks(experiment, catalog, steps, run)))
    for name, kind in missing.items():
        say(f"downloading the {kind} {name}")
        hub_folder(name, kind)


def student_checks(experiment: Experiment, catalog: Catalog, steps: Sequence[Step], run: Run) -> Checks:
    """Check that students have models, and that steps may call them."""
    now = with_trained(experiment, run)
    will_be_trained: set[str] = set()
    for step in steps:
        for name in dict.fromkeys(student_name(r.removeprefix(JOINED)) for r in step.model_references):
            if name not in will_be_trained:
                yield partial(require_trained, now, name)
        yield partial(kind_of(step).check_students, step, now, catalog, run)
        if step.trains_model:
            will_be_trained.add(step.name)


def file_checks(experiment: Experiment, catalog: Catalog, steps: Sequence[Step], run: Run) -> Checks:
    """Check the files, folders and packages that steps need on this machine."""
    yield lambda: require_trackers(experiment.track)
    for step in steps:
        yield partial(kind_of(step).check, step, experiment, catalog, run)


def _local_model_checks(experiment: Experiment, steps: Sequence[Step], run: Run) -> Checks:
    """Check that steps can call or train the checkpoints on this machine.

    For a model that a step has yet to train, the base is checked, except for the chat template, which training adds.
    """
    checks: dict[tuple[str, bool, int, str], Callable[[], object]] = {}
    for step in steps:
        asked: list[tuple[Settings, bool]] = [
            *((settings_for(experiment, name), name in experiment.students) for name in step.student_names),
            *((experiment.graders[name], True) for name in step.grader_names),
        ]
        for settings, needs_template in asked:
            one = str(settings.asked), needs_template, settings.max_tokens, settings.additions
            checks[one] = partial(_require_asking, settings, needs_template=needs_template)
        if isinstance(step, TrainStep) and step.base in experiment.students:
            yield partial(_require_training, step, experiment.students[step.base], run)
    yield from checks.values()


def _checkpoint_here(asked: str | None) -> Checkpoint | None:
    """Return the local checkpoint of a model, or of the model that an untrained model copies; None if there is none."""
    shape = None if asked is None else shape_of(asked)
    source = shape.spec if isinstance(shape, CopiedShape) else asked
    spec = None if source is None else parse_spec(source)
    if spec is None or not provider_of(spec).has_checkpoint or would_download(spec):
        return None
    try:
        return checkpoint_of(spec, fetches=False)
    except UserError:  # the file checks report missing files
        return None


def _require_asking(settings: Settings, *, needs_template: bool) -> None:
    asked = settings.asked
    if asked is None:
        return
    checkpoint, shape = _checkpoint_here(asked), shape_of(asked)
    longest = POSITIONS if isinstance(shape, ModelShape) else None
    if checkpoint is not None and (shape is not None or provider_of(asked).is_engine):
        longest = positions_of(checkpoint)
    if longest is not None and longest <= settings.max_tokens:
        raise UserError(
            f"max_tokens is {settings.max_tokens}, but {asked} has only {longest} positions for prompt and reply.",
            hint="Set a smaller max_tokens, or choose another model.",
        )
    if checkpoint is not None and needs_template and lacks_chat_template(checkpoint.tokenizer):
        hint = "Choose an instruction-tuned model, or train one in a step that sets format."
        raise UserError(f"The tokenizer of {asked} has no chat template.", hint=hint)
    if checkpoint is not None:
        require_rendering(settings)


def require_rendering(settings: Settings) -> None:
    """Reject a system prompt or template options that the chat template of a local model does not support."""
    provider = provider_of(str(settings.asked))
    if settings.additions and provider.is_engine and all(map(find_spec, provider.packages)):
        asyncio.run(check_chat_template(parse_spec(str(settings.asked)), settings.system, settings.extra_json))


def _require_training(step: TrainStep, base: Settings, run: Run) -> None:
    asked = base.asked
    checkpoint = _checkpoint_here(asked)
    # Bundled models are known to be trainable.
    if checkpoint is None or str(asked).removeprefix("new:").startswith("bundled:"):
        return
    if step.format is None and lacks_chat_template(checkpoint.tokenizer):
        hint = f"Set format: to one of {', '.join(CHAT_TEMPLATES)}."
        raise UserError(f"Step {step.name!r}: the tokenizer of {asked} has no chat template.", hint=hint)
    require_rendering(base)
    check_trainable(step, checkpoint, run)


def _check_prompts(experiment: Experiment, catalog: Catalog) -> None:
    """Check that all prompt sets load, that they have the files for k = 0, and that outcomes are not used as points."""
    own = [settings.prompts for settings in experiment.students.values() if settings.prompts]
    own += [step.prompts for step in experiment.steps if isinstance(step, DatasetStep) and step.prompts]
    for name in sorted({experiment.prompts, *own}):
        load_prompts(name)
    prompts = load_prompts(experiment.prompts)
    faults: list[str] = []
    for name, settings in experiment.graders.items():
        if settings.has_code:
            faults.append(f"graders.{name}: {settings.model} gives points, but this prompt set needs outcomes")
    if experiment.answer.missing_marker == "zero":
        faults.append("answer.missing_marker: refusals usually have no marker; set it to whole")
    for step in experiment.steps:
        if step.stage == "dataset":
            faults.append(f"steps.{step.name}: a data set needs full marks, but graders give outcomes")
        if step.stage in ("annotate", "graders"):
            faults.append(f"steps.{step.name}: {step.stage} steps need points, but graders give outcomes")
        if step.may_stop_early:
            faults.append(f"steps.{step.name}.stop_below: full marks are needed, but graders give outcomes")
    if prompts.phrases.outcomes and faults:
        hint = f"The prompt set {prompts.name} asks graders for outcomes; choose another set for points and data sets."
        raise faults_error(experiment.name, faults, hint=hint)
    for cell in (cell for step in experiment.steps for cell in step.undrawn_cells(experiment.steps)):
        if cell.k == 0 and cell.student in experiment.students:
            load_prompts(experiment.students[cell.student].prompts or experiment.prompts).require_plain()
    any_combination = combination_of([catalog.skills[0].name], catalog.topics[0])
    for settings in experiment.graders.values():
        if settings.asked is not None:
            prompts.grader_prompt(catalog, any_combination, answer="", variant=settings.prompts)


def check_journal(context: StepContext, steps: Sequence[Step]) -> None:
    """Reject changes of models, prompts and sampling settings that already have calls in the journal.

    The first conversation of each cell is compared with the journal.
    """
    now = replace(context, experiment=with_trained(context.experiment, context.run))
    for step in now.experiment.steps:
        for conversations, cell in kind_of(step).first_cells(step, now):
            if cell.student in now.experiment.students and cell.combinations:
                waiting = deque([conversations.first(cell.student, cell.combinations[0], cell.numbers[0])])
                while waiting:
                    request = waiting.popleft().request
                    outcome = now.journal.find(request)  # raises an error if the stored request is different
                    waiting.extend(conversations.follow(request, outcome) if outcome is not None else ())
    refuse(now.experiment.name, errors_of(student_checks(now.experiment, now.catalog, steps, now.run)))


def check_code_graders(experiment: Experiment, catalog: Catalog, steps: Sequence[Step]) -> None:
    """Reject graders by code if any skill of a setting has no checker, even if no combination contains this skill."""
    for step in steps:
        code = [name for name in step.grader_names if experiment.graders[name].asked is None]
        if code:
            cells = step.undrawn_cells(experiment.steps)
            different = {(c.catalog, c.partition, c.setting, c.exclude): c for c in cells}.values()
            drawn = [(place_of(c, experiment, catalog), c.setting, c.exclude) for c in different]
            if isinstance(step, DatasetStep) and step.writer:
                place = place_of(step, experiment, catalog)
                drawn = [(place, step.setting_of(k), tuple(step.exclude)) for k in step.data_recipe.ks]
            for place, setting, exclude in drawn:
                require_checkers(catalog, place.pool(setting, exclude).skills, code[0])


async def probe_models(experiment: Experiment, steps: Sequence[Step]) -> None:
    """Find wrong keys, URLs and model names before the first paid call."""
    graders = sorted({name for step in steps for name in step.grader_names})
    # The model of a train step may not exist yet.
    students = sorted({name for step in steps for name in step.student_names if name in experiment.students})
    await probe_settings(settings_by_model(experiment, students, graders))


async def probe_settings(settings: Mapping[str, Settings]) -> None:
    """Open and probe models, and report all unusable ones in a single error."""
    errors: list[UserError] = []
    probed: dict[str, _Probed] = {}
    async with AsyncExitStack() as opened:
        for name, one in settings.items():
            try:
                probed |= {**await opened_models({name: one}, opened, say), **opened_clients({name: one}, opened)}
            except UserError as error:
                errors.append(error)
        for key, addresses in sorted({(s.key, parse_spec(str(s.asked)).addresses) for s in settings.values() if s.key}):
            say(f"{key} is sent to {', '.join(addresses) or 'its provider'}")
        errors += filter(None, await asyncio.gather(*(_probe(name, model) for name, model in probed.items())))
    refuse("The models", errors)


def require_access(settings: Settings) -> None:
    """Reject a model whose checkpoint, program or key is missing on this machine, without contacting a server."""
    spec = parse_spec(str(settings.asked))
    provider = provider_of(spec)
    if not provider.is_listed:
        open_model(spec)  # raises an error, because only imported runs have such models
    if provider.has_checkpoint and not would_download(spec):
        checkpoint_of(spec, fetches=False)
    elif provider.is_served:
        servers_of(spec, settings.access)
    if spec.provider in ("vllm", "llamacpp"):
        require_server(spec)


def would_download(spec: ModelSpec) -> bool:
    """Return whether a model is a bundled model that is not in the cache yet."""
    base = str(spec).partition("+")[0]
    return any(model.spec == base and not model.folder for model in bundled_models())


_LONGEST_PROBE: Final = 8.0
"""The timeout of a probe in seconds."""


class _Probed(Protocol):
    async def probe(self) -> CallProblem | None: ...


async def _probe(name: str, model: _Probed) -> UserError | None:
    """Probe a model with a short timeout, because an unresponsive server would block for the timeout of a call."""
    try:
        problem = await asyncio.wait_for(model.probe(), _LONGEST_PROBE)
    except TimeoutError:
        problem = CallProblem("fatal", "no connection", f"no reply within {_LONGEST_PROBE:g} s")
    except UserError as error:
        return error
    if problem is None:
        return None
    return UserError(
        f"The {name.replace(':', ' ')} cannot be used: {problem.reason}. {problem.detail}".rstrip(),
        hint="Check the name of its model, its URL and its key in the environment. No call was made.",
    )


def prices_by_model(experiment: Experiment, prices: dict[str, Price]) -> dict[str, Price | None]:
    """Map models to prices (None if unknown), and reject a limit in dollars that needs an unknown price."""
    settings_of = settings_by_model(experiment, list(experiment.students), list(experiment.graders))
    trained = {f"student:{name}": Price(0.0, 0.0) for name in made_students(experiment)}
    known = {name: price_of_calls(settings, prices) for name, settings in settings_of.items()}
    unknown = sorted({settings_of[name].model for name, price in known.items() if price is None})
    if experiment.budget.max_usd is not None and unknown:
        spec = parse_spec(str(asked_model(unknown[0])))
        raise UserError(
            f"budget.max_usd cannot be enforced: the price of {', '.join(unknown)} is unknown.",
            hint=f"Add --prices FILE with a line such as {spec.provider}:{spec.name}: {{input: 2.5, output: 10.0}}, in "
            "US dollars per million tokens (`skillmix prices` can write the file), or limit the run by max_calls.",
        )
    return {**trained, **known}
