"""`skillmix run --dry-run`: what an experiment would ask for, before anything is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from skillmix.config.catalogs import load_catalog
from skillmix.config.dataset_step import DatasetStep
from skillmix.config.experiment import Experiment, GenerateStep, GradeStep, load_experiment
from skillmix.config.price_file import load_prices
from skillmix.config.prompt_sets import load_prompts
from skillmix.core.catalog import Catalog, Setting
from skillmix.core.combinations import Combination, Draw, all_combinations
from skillmix.core.prices import Price, price_of, tokens_in
from skillmix.core.prompts import PromptSet
from skillmix.core.specs import parse_spec
from skillmix.render.estimate_table import AT_LEAST
from skillmix.stages.plan import CALL_STEPS, CallStep, step_cells
from skillmix.stages.trained_models import settings_for, student_name

_ANSWER = "x" * 400
"""As long as answers are, for the length of a grader's prompt."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one model does in one step, at most: re-asks of unreadable grades and failed tries not counted."""

    step: str
    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None if the price is not known."""


def estimates(path: Path, *, prices: Path | None, changes: Sequence[str] = ()) -> list[Estimate]:
    """Calls, tokens and cost of every step that makes calls."""
    experiment = load_experiment(path, changes=changes)
    catalog = load_catalog(experiment.catalog)
    known = _Known(experiment, catalog, load_prices(prices))
    found = []
    for step in experiment.steps:
        if isinstance(step, CALL_STEPS):
            found += _step_estimates(step, known)
        elif isinstance(step, DatasetStep) and step.writer:
            found += _dataset_estimates(step, known)
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """What an estimate is made from."""

    experiment: Experiment
    catalog: Catalog
    prices: dict[str, Price]


_Counted = Sequence[tuple[Combination, int]]
"""Combinations, and how many conversations each has."""


def _step_estimates(step: CallStep, known: _Known) -> list[Estimate]:
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


def _dataset_estimates(step: DatasetStep, known: _Known) -> list[Estimate]:
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


def _student_estimate(step: str, student: str, counted: _Counted, known: _Known) -> Estimate:
    settings = settings_for(known.experiment, student)
    prompts = load_prompts(settings.prompts or known.experiment.prompts)
    calls = 2 * sum(count for _, count in counted)
    tokens = sum(
        count * _student_tokens(prompts, known.catalog, combination, settings.max_tokens)
        for combination, count in counted
    )
    output = calls * settings.max_tokens
    if student not in known.experiment.students:  # trained here, and asked here
        return Estimate(step, f"step:{student}", calls, tokens, output, 0.0)
    return _estimate(step, settings.model, calls, tokens, output, known.prices)


def _grader_estimates(step: str, graders: Sequence[str], counted: _Counted, known: _Known) -> list[Estimate]:
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


def _student_tokens(prompts: PromptSet, catalog: Catalog, combination: Combination, longest_reply: int) -> int:
    """Both turns: the second repeats the first, and the reply to it."""
    first, second = prompts.student_prompts(catalog, combination)
    worked = sum(len(asked) + len(said) for asked, said in prompts.worked_turns())
    return 2 * tokens_in(worked + len(first)) + longest_reply + tokens_in(len(second))


def _estimate(step: str, model: str, calls: int, tokens: int, output: int, known: Mapping[str, Price]) -> Estimate:
    price = price_of(parse_spec(model), dict(known))
    return Estimate(step, model, calls, tokens, output, price.of(tokens, output) if price else None)
