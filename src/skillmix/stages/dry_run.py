"""`skillmix run --dry-run`: what an experiment would ask for, before anything is asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from skillmix.config.catalogs import load_catalog
from skillmix.config.experiment import Experiment, GenerateStep, GradeStep, load_experiment
from skillmix.config.price_file import load_prices
from skillmix.config.prompt_sets import load_prompts
from skillmix.core.catalog import Catalog
from skillmix.core.combinations import Combination
from skillmix.core.prices import Price, price_of, tokens_in
from skillmix.core.prompts import PromptSet
from skillmix.core.specs import parse_spec
from skillmix.stages.plan import CALL_STEPS, CallStep, step_cells

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
    known = load_prices(prices)
    found = []
    for step in experiment.steps:
        if isinstance(step, CALL_STEPS):
            found += _step_estimates(step, experiment, catalog, known)
    return found


def _step_estimates(
    step: CallStep, experiment: Experiment, catalog: Catalog, known: dict[str, Price]
) -> list[Estimate]:
    conversations: dict[str, dict[str, tuple[Combination, int]]] = {}
    for cell in step_cells(step, experiment, catalog):
        for combination in cell.combinations:
            conversations.setdefault(cell.student, {})[combination.id] = combination, cell.generations
    found = []
    graded = [pair for by_id in conversations.values() for pair in by_id.values()]
    for student, by_id in conversations.items() if not isinstance(step, GradeStep) else ():
        settings = experiment.students[student]
        prompts = load_prompts(settings.prompts or experiment.prompts)
        count = sum(generations for _, generations in by_id.values())
        tokens = sum(
            generations * _student_tokens(prompts, catalog, combination, settings.max_tokens)
            for combination, generations in by_id.values()
        )
        found.append(_estimate(step.name, settings.model, 2 * count, tokens, 2 * count * settings.max_tokens, known))
    for grader in step.graders if not isinstance(step, GenerateStep) else ():
        judge = experiment.graders[grader]
        if judge.asked is None:
            continue
        prompts = load_prompts(experiment.prompts)
        calls = judge.votes * sum(generations for _, generations in graded)
        tokens = judge.votes * sum(
            generations * tokens_in(len(prompts.grader_prompt(catalog, c, answer=_ANSWER, variant=judge.prompts)))
            for c, generations in graded
        )
        found.append(_estimate(step.name, judge.asked, calls, tokens, calls * judge.max_tokens, known))
    return found


def _student_tokens(prompts: PromptSet, catalog: Catalog, combination: Combination, longest_reply: int) -> int:
    """Both turns: the second repeats the first, and the reply to it."""
    first, second = prompts.student_prompts(catalog, combination)
    worked = sum(len(asked) + len(said) for asked, said in prompts.worked_turns())
    return 2 * tokens_in(worked + len(first)) + longest_reply + tokens_in(len(second))


def _estimate(step: str, model: str, calls: int, tokens: int, output: int, known: Mapping[str, Price]) -> Estimate:
    price = price_of(parse_spec(model), dict(known))
    return Estimate(step, model, calls, tokens, output, price.of(tokens, output) if price else None)
