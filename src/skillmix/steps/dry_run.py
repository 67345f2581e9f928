"""`skillmix run --dry-run`: what an experiment would ask for, before anything is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from skillmix.catalog.catalog import Catalog, Setting
from skillmix.catalog.combinations import Combination, Draw, all_combinations
from skillmix.catalog.files import load_catalog
from skillmix.experiment.dataset_step import DatasetStep
from skillmix.experiment.experiment import Experiment, GenerateStep, GradeStep, load_experiment
from skillmix.experiment.gpu_hours import generation_hours, training_hours, training_tokens
from skillmix.experiment.plan import CALL_STEPS, CallStep, step_cells
from skillmix.experiment.prices import Price, load_prices, price_of, tokens_in
from skillmix.experiment.sections import student_name
from skillmix.experiment.train_step import TrainStep
from skillmix.models.specs import parse_spec
from skillmix.prompts.files import load_prompts
from skillmix.prompts.prompt_set import PromptSet
from skillmix.render.markdown import markdown_table
from skillmix.render.numbers import dollars, hours, whole
from skillmix.runs.students import settings_for

Row = tuple[str, str, int, int | None, int, float | None, float | None]


_HEADER: Final = (
    "step",
    "model",
    "calls",
    "tokens in, at most",
    "tokens out, at most",
    "US dollars, at most",
    "GPU hours, at most",
)


AT_LEAST: Final = ", at least"
"""How the step of a row ends that is a lower bound, and is in no sum."""


def estimate_table(rows: Sequence[Row]) -> str:
    """One row for each model of each step, and the sum of the most that they may be, unknown if a part of it is."""
    most = [row for row in rows if not row[0].endswith(AT_LEAST)]
    cells = [[step, model, *_numbers(*numbers)] for step, model, *numbers in rows]
    cells.append(["all", "", *_numbers(*(_total([row[place] for row in most]) for place in range(2, 7)))])
    return markdown_table(_HEADER, cells, right=frozenset(range(2, 7)))


def _numbers(
    calls: float | None, tokens_in: float | None, tokens_out: float | None, usd: float | None, gpu: float | None
) -> list[str]:
    counts = ["unknown" if number is None else whole(int(number)) for number in (calls, tokens_in, tokens_out)]
    return [*counts, dollars(usd), hours(gpu)]


def _total(values: Sequence[object]) -> float | None:
    known = [value for value in values if isinstance(value, int | float)]
    return sum(known) if len(known) == len(values) else None


_ANSWER = "x" * 400
"""As long as answers are, for the length of a grader's prompt."""


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """What one model does in one step, at most: re-asks of unreadable grades and failed tries not counted."""

    step: str
    model: str
    calls: int
    input_tokens: int | None
    """Tokens of prompts; of a train step, all that it reads. None if not known."""
    output_tokens: int
    cost_usd: float | None
    """None if the price is not known."""
    gpu_hours: float | None = 0.0
    """None if the model's size is not known."""


def estimates(path: Path, *, prices: Path | None, changes: Sequence[str] = ()) -> list[CallEstimate]:
    """Calls, tokens, cost and GPU hours of every step that makes calls or trains."""
    experiment = load_experiment(path, changes=changes)
    catalog = load_catalog(experiment.catalog)
    known = _Known(experiment, catalog, load_prices(prices))
    found = []
    for step in experiment.steps:
        if isinstance(step, CALL_STEPS):
            found += _step_estimates(step, known)
        elif isinstance(step, DatasetStep) and step.writer:
            found += _dataset_estimates(step, known)
        elif isinstance(step, TrainStep):
            found.append(_training_estimate(step, known))
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """What an estimate is made from."""

    experiment: Experiment
    catalog: Catalog
    prices: dict[str, Price]


_Counted = Sequence[tuple[Combination, int]]
"""Combinations, and how many conversations each has."""


def _step_estimates(step: CallStep, known: _Known) -> list[CallEstimate]:
    conversations: dict[str, dict[str, tuple[Combination, int]]] = {}
    for cell in step_cells(step, known.experiment, known.catalog):
        for combination in cell.combinations:
            conversations.setdefault(cell.student, {})[combination.id] = combination, cell.generations
    found = []
    for student, by_id in conversations.items() if not isinstance(step, GradeStep) else ():
        found.append(_student_estimate(step.name, student, list(by_id.values()), known))
    graded = [pair for by_id in conversations.values() for pair in by_id.values()]
    graders = [] if isinstance(step, GenerateStep) else step.graders
    return found + _grader_estimates(step.name, graders, graded, known)


def _dataset_estimates(step: DatasetStep, known: _Known) -> list[CallEstimate]:
    """The fewest conversations that can reach the targets, and the most that may be written for them."""
    found = []
    for words, count_of in ((AT_LEAST, step.target_of), (", at most", step.most_of)):
        counted: list[tuple[Combination, int]] = []
        for k in step.chosen.ks:
            setting: Setting = "all" if k == 1 and step.chosen.skills == "all" else "train"
            pool = known.catalog.pool(setting, partition=known.experiment.partition, exclude=known.experiment.exclude)
            draw = Draw(side=pool, setting=setting, k=k, seed=known.experiment.seed, purpose="training")
            # The prompts of some stand for those of all.
            sample = list(islice(all_combinations(draw), _SAMPLE))
            each, more = divmod(count_of(k), len(sample))
            counted += [(combination, each + (place < more)) for place, combination in enumerate(sample)]
        name = f"{step.name}{words}"
        found.append(_student_estimate(name, student_name(str(step.writer)), counted, known))
        found += _grader_estimates(name, step.graders, counted, known)
    return found


_SAMPLE = 50


def _student_estimate(step: str, student: str, counted: _Counted, known: _Known) -> CallEstimate:
    settings = settings_for(known.experiment, student)
    prompts = load_prompts(settings.prompts or known.experiment.prompts)
    calls = 2 * sum(count for _, count in counted)
    tokens = sum(
        count * _student_tokens(prompts, known.catalog, combination, settings.max_tokens)
        for combination, count in counted
    )
    output = calls * settings.max_tokens
    if student not in known.experiment.students:  # trained here, and asked here
        hours = generation_hours(settings.model, tokens + output)
        return CallEstimate(step, f"step:{student}", calls, tokens, output, 0.0, hours)
    return _estimate(step, settings.model, calls, tokens, output, known.prices)


def _grader_estimates(step: str, graders: Sequence[str], counted: _Counted, known: _Known) -> list[CallEstimate]:
    prompts = load_prompts(known.experiment.prompts)
    found = []
    for grader in graders:
        judge = known.experiment.graders[grader]
        if judge.asked is None:
            continue
        calls = judge.votes * sum(count for _, count in counted)
        tokens = judge.votes * sum(
            count * tokens_in(len(prompts.grader_prompt(known.catalog, c, answer=_ANSWER, variant=judge.prompts)))
            for c, count in counted
        )
        found.append(_estimate(step, judge.asked, calls, tokens, calls * judge.max_tokens, known.prices))
    return found


def _training_estimate(step: TrainStep, known: _Known) -> CallEstimate:
    """No calls, but a GPU."""
    model = settings_for(known.experiment, student_name(step.base)).model
    tokens = training_tokens(step, conversations=_conversations(step, known.experiment))
    return CallEstimate(step.name, step.base, 0, tokens, 0, 0.0, training_hours(step, model, tokens))


def _conversations(step: TrainStep, experiment: Experiment) -> int | None:
    """How many there will be at most; None if a file or a joined data set says."""
    written = {s.name: s for s in experiment.steps if isinstance(s, DatasetStep) and s.writer}
    if not set(step.data) <= written.keys():
        return None
    return sum(written[name].target_of(k) for name in step.data for k in written[name].chosen.ks)


def _student_tokens(prompts: PromptSet, catalog: Catalog, combination: Combination, longest_reply: int) -> int:
    """Both turns: the second repeats the first, and the reply to it."""
    first, second = prompts.student_prompts(catalog, combination)
    before = [*prompts.worked_turns(), *prompts.lead_turns(catalog, combination)]
    worked = sum(len(asked) + len(said) for asked, said in before)
    return 2 * tokens_in(worked + len(first)) + longest_reply + tokens_in(len(second))


def _estimate(step: str, model: str, calls: int, tokens: int, output: int, known: Mapping[str, Price]) -> CallEstimate:
    price = price_of(parse_spec(model), dict(known))
    cost = price.of(tokens, output) if price else None
    return CallEstimate(step, model, calls, tokens, output, cost, generation_hours(model, tokens + output))
