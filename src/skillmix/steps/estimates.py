"""Estimates for `skillmix run --dry-run`: calls, tokens, cost and GPU hours, and the table that shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.experiment.costs import Price, price_of, tokens_in
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.gpu_hours import generation_hours
from skillmix.models.specs import parse_spec
from skillmix.prompts.files import load_prompts
from skillmix.prompts.prompt_set import PromptSet
from skillmix.render.markdown import markdown_table
from skillmix.render.numbers import dollars, hours, whole
from skillmix.runs.students import settings_for

_HEADER: Final = (
    "step",
    "model",
    "calls",
    "tokens in, at most",
    "tokens out, at most",
    "US dollars, at most",
    "GPU hours, at most",
)
_NUMBERS: Final = 5
"""Columns after step and model."""
_ANSWER: Final = "x" * 400
"""An answer of usual length, for the length of a grader's prompt."""


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """Upper bounds for one model in one step, without calls repeated after a failure or an unreadable grade."""

    step: str
    """Name of the step, with the bound if the step has two."""
    model: str
    calls: int
    input_tokens: int | None
    """Tokens of the prompts; in a train step, all tokens that it reads. None if not known."""
    output_tokens: int
    cost_usd: float | None
    """None if the price is not known."""
    gpu_hours: float | None = 0.0
    """None if the model's size is not known."""
    is_lower_bound: bool = False
    """Whether these are the smallest numbers that can be enough; they are part of no sum."""


@dataclass(frozen=True, slots=True)
class EstimateBasis:
    """The input of every estimate."""

    experiment: Experiment
    catalog: Catalog
    prices: dict[str, Price]


Counted = Sequence[tuple[Combination, int]]
"""Combinations, each with its number of conversations."""


def estimate_table(estimates: Sequence[CallEstimate]) -> str:
    """One row for each model of each step, and the sum of the upper bounds; an unknown part makes the sum unknown."""
    rows = [[estimate.step, estimate.model, *_number_cells(_numbers(estimate))] for estimate in estimates]
    columns = zip(*(_numbers(estimate) for estimate in estimates if not estimate.is_lower_bound), strict=True)
    sums = [_sum(column) for column in columns] or [0.0] * _NUMBERS
    rows.append(["all", "", *_number_cells(sums)])
    return markdown_table(_HEADER, rows, right=frozenset(range(2, 2 + _NUMBERS)))


def _numbers(estimate: CallEstimate) -> list[float | None]:
    return [
        estimate.calls,
        estimate.input_tokens,
        estimate.output_tokens,
        estimate.cost_usd,
        estimate.gpu_hours,
    ]


def _number_cells(numbers: Sequence[float | None]) -> list[str]:
    *counts, cost_usd, gpu_hours = numbers
    texts = ["unknown" if number is None else whole(int(number)) for number in counts]
    return [*texts, dollars(cost_usd), hours(gpu_hours)]


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def student_estimate(step: str, student: str, counted: Counted, basis: EstimateBasis) -> CallEstimate:
    """The calls of a student: two turns for each conversation."""
    settings = settings_for(basis.experiment, student)
    prompts = load_prompts(settings.prompts or basis.experiment.prompts)
    calls = 2 * sum(count for _, count in counted)
    tokens = sum(
        count * _student_tokens(prompts, basis.catalog, combination, settings.max_tokens)
        for combination, count in counted
    )
    output = calls * settings.max_tokens
    if student not in basis.experiment.students:  # the model of a train step, which runs on this machine
        hours = generation_hours(settings.model, tokens + output)
        return CallEstimate(step, f"step:{student}", calls, tokens, output, 0.0, hours)
    return _estimate(step, settings.model, calls, tokens, output, basis.prices)


def grader_estimates(step: str, graders: Sequence[str], counted: Counted, basis: EstimateBasis) -> list[CallEstimate]:
    """The calls of each grader that is a model: one for each vote."""
    prompts = load_prompts(basis.experiment.prompts)
    estimates = []
    for name in graders:
        grader = basis.experiment.graders[name]
        if grader.asked is None:
            continue
        calls = grader.votes * sum(count for _, count in counted)
        tokens = grader.votes * sum(
            count * tokens_in(len(prompts.grader_prompt(basis.catalog, c, answer=_ANSWER, variant=grader.prompts)))
            for c, count in counted
        )
        estimates.append(_estimate(step, grader.asked, calls, tokens, calls * grader.max_tokens, basis.prices))
    return estimates


def _student_tokens(prompts: PromptSet, catalog: Catalog, combination: Combination, longest_reply: int) -> int:
    """Prompt tokens of both turns; the second prompt repeats the first and the reply to it."""
    first, second = prompts.student_prompts(catalog, combination)
    turns_before = [*prompts.worked_turns(), *prompts.lead_turns(catalog, combination)]
    characters_before = sum(len(prompt) + len(reply) for prompt, reply in turns_before)
    return 2 * tokens_in(characters_before + len(first)) + longest_reply + tokens_in(len(second))


def _estimate(step: str, model: str, calls: int, tokens: int, output: int, prices: dict[str, Price]) -> CallEstimate:
    price = price_of(parse_spec(model), prices)
    cost = price.of(tokens, output) if price else None
    return CallEstimate(step, model, calls, tokens, output, cost, generation_hours(model, tokens + output))
