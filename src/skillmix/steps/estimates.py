"""Estimates for `skillmix run --dry-run`: calls, tokens, cost and GPU hours, and the lines that show them.

Every row has an upper bound and an expectation. The upper bound takes the longest replies, and all attempts at
unreadable grades. The expectation takes the tokens of past calls, or typical lengths where there are none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from skillmix.catalog.catalog import RESERVED_NAMES, Catalog
from skillmix.catalog.combinations import Combination
from skillmix.experiment.costs import Price, generation_hours, price_warnings, tokens_in, usual_tokens_in
from skillmix.experiment.experiment import BudgetSettings, Experiment, StudentSettings
from skillmix.experiment.plan import Settings
from skillmix.models.request_fields import additions
from skillmix.models.specs import short_spec
from skillmix.prompts.prompt_set import PromptSet, load_prompts
from skillmix.render import dollars, hours, markdown_table, middle_cut, whole
from skillmix.runs.batches.step_batches import batch_share, price_of_calls
from skillmix.runs.conversations import model_name
from skillmix.runs.past_calls import AskedOf, PastCalls
from skillmix.runs.students import settings_for

_HEADER: Final = (
    "step",
    "role",
    "model",
    "calls, at most",
    "tokens in, at most",
    "tokens out, at most",
    "US dollars, expected",
    "US dollars, at most",
    "GPU hours, at most",
    "expected from",
)
_NUMBERS: Final = 6
"""Columns between the model and the last column."""
_LONGEST_ADDITIONS: Final = 80
TYPICAL: Final = "typical lengths"
# Five conversations of GPT-4 with k = 3 in the sample records of the original code have replies of 1,137 and 852
# characters, texts of 204 and gradings of 1,488. Explanations and rows grow with the number of skills.
_REPLY_PER_SKILL: Final = 200
_TEXT_PER_SKILL: Final = 70
_GRADING_PER_CRITERION: Final = 250

Role = Literal["student", "writer", "grader", "re-grader", "training"]
"""What a model does in a step; a writer writes for a data set, and a re-grader grades texts that have grades."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a row is expected to take."""

    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None if the price is not known."""
    basis: str
    """The calls that the average tokens come from, or that they are typical lengths."""


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """Upper bounds for one model in one step, and what is expected; calls repeated after a failure are not counted."""

    step: str
    """Name of the step, with the bound if the step has two."""
    model: str
    calls: int
    """Calls with all attempts at unreadable grades."""
    input_tokens: int | None
    """Tokens of the prompts; in a train step, all tokens that it reads. None if not known."""
    output_tokens: int
    cost_usd: float | None
    """None if the price is not known."""
    gpu_hours: float | None = 0.0
    """None if the model's size is not known."""
    is_lower_bound: bool = False
    """Whether these are the smallest numbers that can be enough; they are part of no sum."""
    role: Role = "student"
    expected: Expected | None = None
    """None for a train step, which makes no calls."""
    price: Price | None = None
    """None if the price is not known, and for models that a step trains."""
    system: str | None = None
    extra: dict[str, object] = field(default_factory=dict)
    is_batch: bool = False
    """Whether the calls travel in batches, and the costs are those of batches."""
    batch_share: float | None = None
    """The cost in batches as a share of the cost of direct calls; None if the model has no batches."""


@dataclass(frozen=True, slots=True)
class EstimateBasis:
    """The input of every estimate."""

    experiment: Experiment
    catalog: Catalog
    prices: dict[str, Price]
    past: PastCalls
    longest_text: int | None = None
    """Tokens of the longest text that is graded; None if students write the texts, up to their limits."""


@dataclass(frozen=True, slots=True)
class EstimatedStep:
    """A step, with its bound if it has two, and what a model does in it."""

    step: str
    role: Role
    is_lower_bound: bool = False


Counted = Sequence[tuple[Combination, int]]
"""Combinations, each with its number of conversations."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Calls and tokens of one row."""

    calls: float
    input: float
    output: float

    def __add__(self, other: "_Tokens") -> "_Tokens":
        return _Tokens(self.calls + other.calls, self.input + other.input, self.output + other.output)


_NO_TOKENS: Final = _Tokens(0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The model of one row, and how it is asked."""

    label: EstimatedStep
    model: str
    """The model as the row names it."""
    spec: str
    settings: Settings
    past: AskedOf
    price: Price | None


def student_estimate(label: EstimatedStep, student: str, counted: Counted, basis: EstimateBasis) -> CallEstimate:
    """The calls of a student: one for each turn of a conversation."""
    settings = settings_for(basis.experiment, student)
    prompts = load_prompts(settings.prompts or basis.experiment.prompts, basis.experiment.format)
    longest = settings.max_tokens
    calls = prompts.turns * sum(count for _, count in counted)
    bound = written = 0
    typical: dict[int, _Tokens] = {}
    for combination, texts in counted:
        count = texts * max(1, combination.k) if settings.joined else texts
        written += count
        first, *second = _prompt_lengths(prompts, basis.catalog, combination, settings)
        reply = min(longest, usual_tokens_in(_REPLY_PER_SKILL * (combination.k + 2)))
        # A second prompt repeats the first and the reply to it.
        turns, repeated = prompts.turns, prompts.turns - 1
        bound += count * (turns * tokens_in(first) + repeated * longest + sum(map(tokens_in, second)))
        read = usual_tokens_in(turns * first + sum(second)) + repeated * reply
        usual = _Tokens(turns * texts, count * read, count * turns * reply)
        typical[combination.k] = typical.get(combination.k, _NO_TOKENS) + usual
    asked = _asked_student(label, student, settings, basis)
    return _estimate(asked, _Tokens(calls, bound, prompts.turns * written * longest), typical, basis)


def _asked_student(label: EstimatedStep, student: str, settings: StudentSettings, basis: EstimateBasis) -> _Asked:
    if student not in basis.experiment.students:  # the model of a train step, which runs on this machine
        past = AskedOf("generate", student, None, settings.extra_json)
        return _Asked(label, f"step:{student}", settings.model, settings, past, Price(0.0, 0.0))
    past = AskedOf("generate", student, model_name(settings.model), settings.extra_json)
    price = price_of_calls(settings, basis.prices)
    return _Asked(label, settings.model, settings.model, settings, past, price)


def grader_estimates(
    label: EstimatedStep, graders: Sequence[str], counted: Counted, basis: EstimateBasis
) -> list[CallEstimate]:
    """The calls of each grader that is a model: one for each vote, and at most `attempts` for each."""
    return [
        _grader_estimate(label, name, counted, basis)
        for name in graders
        if basis.experiment.graders[name].asked is not None
    ]


def _grader_estimate(label: EstimatedStep, name: str, counted: Counted, basis: EstimateBasis) -> CallEstimate:
    grader = basis.experiment.graders[name]
    spec = str(grader.asked)
    prompts = load_prompts(basis.experiment.prompts, basis.experiment.format)
    votes = grader.votes * sum(count for _, count in counted)
    longest_text = basis.longest_text
    if longest_text is None:
        longest_text = max((student.max_tokens for student in basis.experiment.students.values()), default=0)
    bound = 0
    typical: dict[int, _Tokens] = {}
    for combination, count in counted:
        prompt = prompts.grader_prompt(basis.catalog, combination, answer="", variant=grader.prompts)
        length = len(prompt) + len(grader.system or "")
        bound += grader.votes * count * (tokens_in(length) + longest_text)
        read = usual_tokens_in(length + _TEXT_PER_SKILL * combination.k)
        reply = min(grader.max_tokens, usual_tokens_in(_GRADING_PER_CRITERION * (combination.k + len(RESERVED_NAMES))))
        usual = _Tokens(grader.votes * count, grader.votes * count * read, grader.votes * count * reply)
        typical[combination.k] = typical.get(combination.k, _NO_TOKENS) + usual
    past = AskedOf("grade", name, model_name(spec), grader.extra_json)
    asked = _Asked(label, spec, spec, grader, past, price_of_calls(grader, basis.prices))
    attempts = 1 if label.is_lower_bound else grader.attempts
    at_most = _Tokens(votes * attempts, bound * attempts, votes * attempts * grader.max_tokens)
    return _estimate(asked, at_most, typical, basis)


def _prompt_lengths(
    prompts: PromptSet, catalog: Catalog, combination: Combination, settings: StudentSettings
) -> tuple[int, ...]:
    """Characters that the model reads before its first reply, and those of a second prompt if there is one."""
    first, *later = prompts.student_prompts(catalog, combination)
    turns_before = [*prompts.worked_turns(), *prompts.lead_turns(catalog, combination)]
    characters_before = sum(len(prompt) + len(reply) for prompt, reply in turns_before)
    return len(settings.system or "") + characters_before + len(first), *map(len, later)


def _estimate(asked: _Asked, at_most: _Tokens, typical: dict[int, _Tokens], basis: EstimateBasis) -> CallEstimate:
    settings = asked.settings
    return CallEstimate(
        step=asked.label.step,
        model=asked.model,
        calls=int(at_most.calls),
        input_tokens=int(at_most.input),
        output_tokens=int(at_most.output),
        cost_usd=_cost(at_most, asked.price),
        gpu_hours=generation_hours(asked.spec, int(at_most.input + at_most.output)),
        is_lower_bound=asked.label.is_lower_bound,
        role=asked.label.role,
        expected=_expected(asked, typical, basis.past),
        price=asked.price,
        system=settings.system,
        extra=dict(settings.extra),
        is_batch=bool(settings.batch),
        batch_share=batch_share(settings, basis.prices),
    )


def _expected(asked: _Asked, typical: dict[int, _Tokens], past_calls: PastCalls) -> Expected:
    """Expectations from past calls of the same model, k by k, or else from typical lengths, which are given by k.

    A free model does without the calls of other runs, which take time to read.
    """
    is_free = asked.price is not None and asked.price.input == asked.price.output == 0
    past = None
    tokens = _NO_TOKENS
    for k, usual in typical.items():
        past = past_calls.averages(asked.past, k, other_runs=not is_free)
        if past is None:
            tokens += usual
        else:
            calls = usual.calls * past.calls_per_vote
            reply = min(past.output_tokens, asked.settings.max_tokens)
            tokens += _Tokens(calls, calls * past.input_tokens, calls * reply)
    return Expected(
        calls=round(tokens.calls),
        input_tokens=round(tokens.input),
        output_tokens=round(tokens.output),
        cost_usd=_cost(tokens, asked.price),
        basis=TYPICAL if past is None else past.basis,
    )


def _cost(tokens: _Tokens, price: Price | None) -> float | None:
    return None if price is None else price.of(tokens.input, tokens.output)


def estimate_table(estimates: Sequence[CallEstimate], *, wide: bool = True) -> str:
    """One row for each model of each step, and the sums; an unknown part makes the sum unknown.

    Unless wide, the table fits a terminal: it has the calls, the dollars and the hours, and long specs are cut.
    """
    rows = [
        [e.step, e.role, _model_cell(e), *_estimate_cells(e), e.expected.basis if e.expected else "–"]
        for e in estimates
    ]
    columns = zip(*(_numbers(estimate) for estimate in _counted_once(estimates)), strict=True)
    sums = [_sum(column) for column in columns] or [0.0] * _NUMBERS
    rows.append(["all", "", "", *_number_cells(sums), ""])
    if wide:
        return markdown_table(_HEADER, rows, right=frozenset(range(3, 3 + _NUMBERS)))
    chosen = [[*row[:2], middle_cut(row[2]), *(row[_HEADER.index(name)] for name in _SHORT)] for row in rows]
    return markdown_table([*_HEADER[:3], *_SHORT.values()], chosen, right=frozenset(range(3, 3 + len(_SHORT))))


_SHORT: Final = {
    "calls, at most": "max calls",
    "US dollars, expected": "$ expected",
    "US dollars, at most": "$ at most",
    "GPU hours, at most": "GPU hours",
}
"""The columns of the short table, with their headings in it."""


def _counted_once(estimates: Sequence[CallEstimate]) -> list[CallEstimate]:
    """The estimates that sums count: of a data set, the most that it may take."""
    return [estimate for estimate in estimates if not estimate.is_lower_bound]


def _model_cell(estimate: CallEstimate) -> str:
    words = additions(estimate.system, estimate.extra)
    short = words if len(words) <= _LONGEST_ADDITIONS else f"{words[: _LONGEST_ADDITIONS - 1]}…"
    model = short_spec(estimate.model)
    return f"{model} ({short})" if short else model


def _numbers(estimate: CallEstimate) -> list[float | None]:
    return [
        estimate.calls,
        estimate.input_tokens,
        estimate.output_tokens,
        estimate.expected.cost_usd if estimate.expected else 0.0,
        estimate.cost_usd,
        estimate.gpu_hours,
    ]


def _estimate_cells(estimate: CallEstimate) -> list[str]:
    calls, *others = _number_cells(_numbers(estimate))
    return [f"≥ {calls}" if estimate.is_lower_bound else calls, *others]


def _number_cells(numbers: Sequence[float | None]) -> list[str]:
    *counts, expected_usd, cost_usd, gpu_hours = numbers
    texts = ["unknown" if number is None else whole(int(number)) for number in counts]
    return [*texts, dollars(expected_usd), dollars(cost_usd), hours(gpu_hours)]


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def estimate_notes(estimates: Sequence[CallEstimate]) -> list[str]:
    """What a reader must know about the table: what the numbers count, and the prices with their dates."""
    paid = {
        f"{short_spec(e.model)}{' in batches' if e.is_batch else ''}": e.price
        for e in estimates
        if e.price is not None and (e.price.input or e.price.output)
    }
    notes = []
    if any(estimate.calls for estimate in estimates):
        notes.append(
            "At most: every reply has its maximum length, and every unreadable grade is asked for again as often as "
            "attempts allows. Calls that a failure repeats are not counted."
        )
    if any(e.expected and e.expected.basis == TYPICAL and e.price and e.price.output for e in estimates):
        notes.append(
            f"Expected from {TYPICAL}: GPT-4's replies in the sample records of the original code, by the number of "
            "skills. A model that reasons before it answers takes more; a small run first gives figures of its own."
        )
    if any(estimate.is_lower_bound for estimate in estimates):
        notes.append("A data set ends at its target: its expected cost lies between those of its two bounds.")
    notes += _batch_notes(_counted_once(estimates))
    return notes + [_price_note(model, price) for model, price in sorted(paid.items())]


def _batch_notes(estimates: Sequence[CallEstimate]) -> Iterator[str]:
    """For each paid model that has batches, its cost in batches and with direct calls."""
    by_model: dict[str, list[CallEstimate]] = {}
    for one in estimates:
        if one.batch_share and one.price is not None and (one.price.input or one.price.output):
            by_model.setdefault(one.model, []).append(one)
    for model, own in sorted(by_model.items()):
        expected, at_most = (_both_costs(own, at_most=at_most) for at_most in (False, True))
        yield (
            f"{short_spec(model)}: in batches (batch: true) {dollars(expected[0])} US dollars are expected and "
            f"{dollars(at_most[0])} at most; with direct calls {dollars(expected[1])} and {dollars(at_most[1])}."
        )


def _both_costs(estimates: Sequence[CallEstimate], *, at_most: bool) -> tuple[float, float]:
    """The cost of a model in batches, and with direct calls."""
    in_batches = direct = 0.0
    for one in estimates:
        cost = (one.cost_usd if at_most else one.expected.cost_usd if one.expected else 0.0) or 0.0
        share = one.batch_share or 1.0
        in_batches += cost if one.is_batch else share * cost
        direct += cost / share if one.is_batch else cost
    return in_batches, direct


def _price_note(model: str, price: Price) -> str:
    noted = f"noted on {price.noted}" if price.noted else "the price file has no date"
    source = f"; {price.source}" if price.source else ""
    dollars_per_million = f"{price.input:g} and {price.output:g} US dollars per million tokens in and out"
    return f"Price of {model}: {dollars_per_million} ({noted}{source})."


def budget_warnings(estimates: Sequence[CallEstimate], budget: BudgetSettings) -> Iterator[str]:
    """A warning for each limit that is below what the experiment is expected to take, or may take at most."""
    yield from price_warnings({short_spec(e.model): e.price for e in estimates})
    counted = _counted_once(estimates)
    cost = _sum([e.cost_usd for e in counted])
    expected = _sum([e.expected.cost_usd for e in counted if e.expected])
    if budget.max_usd is not None and (cost is None or expected is None):
        unknown = ", ".join(sorted({e.model for e in counted if e.cost_usd is None}))
        yield f"budget.max_usd cannot be kept: the price of {unknown} is not known"
    elif budget.max_usd is not None and cost is not None and expected is not None:
        yield from _limit_warning("max_usd", budget.max_usd, (expected, cost), unit=" US dollars", digits=2)
    if budget.max_calls is not None:
        calls = sum(e.expected.calls for e in counted if e.expected), sum(e.calls for e in counted)
        yield from _limit_warning("max_calls", budget.max_calls, calls, unit=" calls", digits=0)


def _limit_warning(name: str, limit: float, needs: tuple[float, float], *, unit: str, digits: int) -> Iterator[str]:
    expected, at_most = needs
    if limit < expected:
        yield (
            f"budget.{name} is {limit:,.{digits}f}, below the expected {expected:,.{digits}f}{unit}: "
            "the run will stop before its end"
        )
    elif limit < at_most:
        yield (
            f"budget.{name} is {limit:,.{digits}f}, below the maximum of {at_most:,.{digits}f}{unit}: "
            "the run may stop before its end"
        )
