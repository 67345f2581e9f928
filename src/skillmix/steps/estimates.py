"""Estimates for `--dry-run`: calls, tokens, cost and GPU hours, and their output.

Every row has an upper bound and an expectation. The upper bound assumes replies of maximum length and all attempts at
unparseable grades. The expectation uses the tokens of past calls, or else typical lengths.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, NamedTuple

from skillmix.calls import extra_json
from skillmix.catalog.catalog import RESERVED_NAMES, Catalog
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.experiment.costs import Price, generation_hours, price_of, price_warnings, tokens_in, usual_tokens_in
from skillmix.experiment.experiment import BudgetSettings, Experiment
from skillmix.experiment.plan import Settings
from skillmix.models.request_fields import additions
from skillmix.models.specs import dialect_of, parse_spec, short_spec
from skillmix.prompts.prompt_set import load_prompts
from skillmix.render import dollars, hours, known_sum, markdown_table, middle_cut, plural, whole
from skillmix.runs.conversations import model_name
from skillmix.runs.database import RUN_FILE
from skillmix.runs.journal import JournalReader
from skillmix.runs.run import Run
from skillmix.runs.students import settings_for

_COLUMNS: Final[dict[str, str | None]] = {
    "step": "step",
    "role": "role",
    "model": "model",
    "calls, at most": "max calls",
    "tokens in, at most": None,
    "tokens out, at most": None,
    "US dollars, expected": "$ expected",
    "US dollars, at most": "$ at most",
    "GPU hours, at most": "GPU hours",
    "expected from": None,
}
"""Map the headings of the wide table to those of the short table; None for a column that the short table omits."""
_NUMBERS: Final = slice(3, -1)
"""The columns of numbers in the wide table."""
_LONGEST_ADDITIONS: Final = 80
TYPICAL: Final = "typical lengths"
# In the sample records of the original code, five conversations of GPT-4 with k = 3 have lengths of 1,137 and 852
# characters for the two replies, 204 for the text, and 1,488 for the grading. Explanations and rows grow with the
# number of skills.
_REPLY_PER_SKILL: Final = 200
_TEXT_PER_SKILL: Final = 70
_GRADING_PER_CRITERION: Final = 250

_MOST_JOURNALS: Final = 20
"""The maximum number of other runs' journals to read, latest first; with more, an estimate could take minutes."""
_AVERAGES: Final = (
    "SELECT stage, coalesce(grader, student), model, decoding, json_array_length(skills), count(*), sum(input_tokens), "
    "sum(output_tokens), sum(coalesce(attempt, 0) = 0) FROM call JOIN combination ON combination.id = call.combination "
    "WHERE status = 'done' AND origin = 'call' AND input_tokens > 0 AND output_tokens >= 0 GROUP BY 1, 2, 3, 4, 5"
)

Role = Literal["student", "writer", "grader", "re-grader", "training"]
"""The role of a model in a step. A writer writes for a data set; a re-grader grades texts that already have grades."""


class ModelCalls(NamedTuple):
    """The fields that identify the calls of one student or grader in a journal."""

    stage: Literal["generate", "grade"]
    name: str
    """The name of the student or grader."""
    model: str | None
    """None for the model of a train step, whose name differs between runs."""
    extra: str | None

    def includes(self, stored: "ModelCalls") -> bool:
        """Return whether stored calls went to the same model with the same extra request fields."""
        is_same = (stored.stage, stored.extra) == (self.stage, self.extra)
        return is_same and self.model in (None, stored.model)


class _Group(NamedTuple):
    """The number and tokens of past calls with the same name, model, sampling and k."""

    of: ModelCalls
    k: int
    calls: int
    input_tokens: int
    output_tokens: int
    first_attempts: int


class Averages(NamedTuple):
    """Average tokens of a model's past calls for one k."""

    input_tokens: float
    output_tokens: float
    calls_per_vote: float
    """Attempts per vote, which exceed 1 if unparseable grades were retried; 1 for students."""
    basis: str
    """The source and number of the past calls."""


class PastCalls:
    """The past calls of a run, and of the other runs in its parent folder whose journals are readable."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def averages(self, wanted: ModelCalls, k: int, *, other_runs: bool) -> Averages | None:
        """Average over past calls with the nearest k, because prompts and replies grow with k; None without such calls.

        Calls with the same name take precedence over other calls of the model. Other runs are used only if this run has
        neither, and if `other_runs` is set.
        """
        source, alike = "this run", [group for group in self._own if wanted.includes(group.of)]
        named = [group for group in alike if group.of.name == wanted.name]
        alike = named if named or wanted.model is None else alike
        if other_runs and not alike and wanted.model is not None:
            source, alike = "other runs", [group for group in self._elsewhere if wanted.includes(group.of)]
        if not alike:
            return None
        nearest = min({group.k for group in alike}, key=lambda other: (abs(other - k), -other))
        groups = [group for group in alike if group.k == nearest]
        calls = sum(group.calls for group in groups)
        return Averages(
            input_tokens=sum(group.input_tokens for group in groups) / calls,
            output_tokens=sum(group.output_tokens for group in groups) / calls,
            calls_per_vote=calls / max(1, sum(group.first_attempts for group in groups)),
            basis=f"{source} ({plural(sum(group.calls for group in alike), 'call')})",
        )

    @cached_property
    def _own(self) -> list[_Group]:
        return list(_groups([self._run.file]))

    @cached_property
    def _elsewhere(self) -> list[_Group]:
        """The calls of other runs, read on first use, because most dry runs do not need them."""
        own = self._run.path
        files = [file for file in own.parent.glob(f"*/{RUN_FILE}") if file.parent != own]
        latest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
        return list(_groups(latest[:_MOST_JOURNALS]))


def _groups(files: Iterable[Path]) -> Iterator[_Group]:
    for file in files:
        # Ignore unreadable journals; a command that uses such a run reports the fault.
        with suppress(UserError, OSError, ValueError, TypeError, AttributeError), JournalReader(file) as journal:
            for stage, name, model, decoding, *numbers in journal.rows(_AVERAGES):
                extra = extra_json(json.loads(decoding).get("extra", {}))
                yield _Group(ModelCalls(stage, name, model, extra), *map(int, numbers))


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected tokens and cost of a row."""

    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """None if the price is unknown."""
    basis: str
    """The source of the expected token counts: past calls, or typical lengths."""


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """Upper bounds and expectations for one model in one step, without calls repeated after a failure."""

    step: str
    """Name of the step, with the kind of bound if the step has two bounds."""
    model: str
    calls: int
    """Calls including all attempts at unparseable grades."""
    input_tokens: int | None
    """Tokens of the prompts; for a train step, all tokens that it reads. None if unknown."""
    output_tokens: int
    cost_usd: float | None
    """None if the price is unknown."""
    gpu_hours: float | None = 0.0
    """None if the size of the model is unknown."""
    is_lower_bound: bool = False
    """Whether the numbers are lower bounds, which sums exclude."""
    role: Role = "student"
    expected: Expected | None = None
    """None for a train step, which makes no calls."""
    price: Price | None = None
    """None if the price is unknown or if a step trains the model."""
    system: str | None = None
    extra: dict[str, object] = field(default_factory=dict)
    is_batch: bool = False
    """Whether the calls are sent in batches, and priced accordingly."""
    batch_share: float | None = None
    """The price in batches as a share of the price of direct calls; None if the model has no batches."""


@dataclass(frozen=True, slots=True)
class EstimateBasis:
    """The inputs that all estimates share."""

    experiment: Experiment
    catalog: Catalog
    prices: dict[str, Price]
    past: PastCalls
    longest_text: int | None = None
    """Tokens of the longest text to grade; None if students write the texts, whose length `max_tokens` then limits."""


@dataclass(frozen=True, slots=True)
class EstimatedStep:
    """The labels of an estimate: the step, with the kind of bound if it has two, and the role of the model."""

    step: str
    role: Role
    is_lower_bound: bool = False


Counted = Sequence[tuple[Combination, int]]
"""Combinations, each with its number of conversations."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The calls and tokens of an estimate, or of a part of it."""

    calls: float = 0
    input: float = 0
    output: float = 0

    def __add__(self, other: "_Tokens") -> "_Tokens":
        return _Tokens(self.calls + other.calls, self.input + other.input, self.output + other.output)

    def cost(self, price: Price | None) -> float | None:
        """Return the cost of the tokens; None if the price is unknown."""
        return None if price is None else price.of(self.input, self.output)


_Part = tuple[int, _Tokens, _Tokens]
"""The calls about one combination: its k, their maximum tokens and their typical tokens."""


def student_estimate(label: EstimatedStep, student: str, counted: Counted, basis: EstimateBasis) -> CallEstimate:
    """Estimate the calls of a student, one for each turn of a conversation."""
    experiment, catalog = basis.experiment, basis.catalog
    settings = settings_for(experiment, student)
    prompts = load_prompts(settings.prompts or experiment.prompts, experiment.format)
    longest, turns, repeated = settings.max_tokens, prompts.turns, prompts.turns - 1
    parts: list[_Part] = []
    for combination, texts in counted:
        count = texts * max(1, combination.k) if settings.joined else texts
        first, *second = map(len, prompts.student_prompts(catalog, combination))
        turns_before = [*prompts.worked_turns(), *prompts.lead_turns(catalog, combination)]
        first += len(settings.system or "") + sum(len(prompt) + len(reply) for prompt, reply in turns_before)
        reply = min(longest, usual_tokens_in(_REPLY_PER_SKILL * (combination.k + 2)))
        # The second request repeats the first prompt and its reply.
        bound = turns * tokens_in(first) + repeated * longest + sum(map(tokens_in, second))
        read = usual_tokens_in(turns * first + sum(second)) + repeated * reply
        at_most = _Tokens(turns * texts, count * bound, turns * count * longest)
        parts.append((combination.k, at_most, _Tokens(turns * texts, count * read, count * turns * reply)))
    is_trained = student not in experiment.students  # the model of a train step, which runs on this machine
    model = f"step:{student}" if is_trained else settings.model
    price = Price(0.0, 0.0) if is_trained else price_of_calls(settings, basis.prices)
    past = ModelCalls("generate", student, None if is_trained else model_name(model), settings.extra_json)
    return _estimate(label, model, settings, parts, past=past, price=price, basis=basis)


def grader_estimates(
    label: EstimatedStep, graders: Sequence[str], counted: Counted, basis: EstimateBasis
) -> list[CallEstimate]:
    """Estimate the calls of each grader that is a model: one per vote as expected, `attempts` per vote at most."""
    experiment = basis.experiment
    prompts = load_prompts(experiment.prompts, experiment.format)
    longest_text = basis.longest_text
    if longest_text is None:
        longest_text = max((student.max_tokens for student in experiment.students.values()), default=0)
    estimates = []
    for name in graders:
        grader = experiment.graders[name]
        if grader.asked is None:
            continue
        attempts = 1 if label.is_lower_bound else grader.attempts
        parts: list[_Part] = []
        for combination, count in counted:
            prompt = prompts.grader_prompt(basis.catalog, combination, answer="", variant=grader.prompts)
            length, votes = len(prompt) + len(grader.system or ""), grader.votes * count
            calls = votes * attempts
            at_most = _Tokens(calls, calls * (tokens_in(length) + longest_text), calls * grader.max_tokens)
            read = usual_tokens_in(length + _TEXT_PER_SKILL * combination.k)
            written = usual_tokens_in(_GRADING_PER_CRITERION * (combination.k + len(RESERVED_NAMES)))
            usual = _Tokens(votes, votes * read, votes * min(grader.max_tokens, written))
            parts.append((combination.k, at_most, usual))
        past = ModelCalls("grade", name, model_name(grader.asked), grader.extra_json)
        price = price_of_calls(grader, basis.prices)
        estimates.append(_estimate(label, grader.asked, grader, parts, past=past, price=price, basis=basis))
    return estimates


def _estimate(
    label: EstimatedStep,
    model: str,
    settings: Settings,
    parts: Sequence[_Part],
    *,
    past: ModelCalls,
    price: Price | None,
    basis: EstimateBasis,
) -> CallEstimate:
    """Make an estimate whose expectation uses, for each k, the model's past calls, or typical lengths if it has none.

    For a free model, other runs are not read, because reading them takes time.
    """
    at_most = expected = _Tokens()
    usual_of: dict[int, _Tokens] = {}
    for k, most, usual in parts:
        at_most += most
        usual_of[k] = usual_of.get(k, _Tokens()) + usual
    averages = None
    for k, usual in usual_of.items():
        averages = basis.past.averages(past, k, other_runs=price is None or not price.is_zero)
        if averages is not None:
            calls = usual.calls * averages.calls_per_vote
            reply = min(averages.output_tokens, settings.max_tokens)
            usual = _Tokens(calls, calls * averages.input_tokens, calls * reply)
        expected += usual
    return CallEstimate(
        step=label.step,
        model=model,
        calls=int(at_most.calls),
        input_tokens=int(at_most.input),
        output_tokens=int(at_most.output),
        cost_usd=at_most.cost(price),
        gpu_hours=generation_hours(str(settings.asked), int(at_most.input + at_most.output)),
        is_lower_bound=label.is_lower_bound,
        role=label.role,
        expected=Expected(
            calls=round(expected.calls),
            input_tokens=round(expected.input),
            output_tokens=round(expected.output),
            cost_usd=expected.cost(price),
            basis=TYPICAL if averages is None else averages.basis,
        ),
        price=price,
        system=settings.system,
        extra=dict(settings.extra),
        is_batch=bool(settings.batch),
        batch_share=batch_share(settings, basis.prices),
    )


def estimate_table(estimates: Sequence[CallEstimate], *, wide: bool = True) -> str:
    """Format a row for each model of each step, and a row of sums; a sum is unknown if any summand is.

    If `wide` is false, the table fits a terminal: it has fewer columns, and long model strings are shortened.
    """
    rows: list[list[str]] = []
    counted: list[list[float | None]] = []
    for one in estimates:
        words = additions(one.system, one.extra)
        short = words if len(words) <= _LONGEST_ADDITIONS else f"{words[: _LONGEST_ADDITIONS - 1]}…"
        model = short_spec(one.model) + (f" ({short})" if short else "")
        usd = one.expected.cost_usd if one.expected else 0.0
        numbers = [one.calls, one.input_tokens, one.output_tokens, usd, one.cost_usd, one.gpu_hours]
        calls, *others = _number_cells(numbers)
        counted += [] if one.is_lower_bound else [numbers]
        basis = one.expected.basis if one.expected else "–"
        rows.append([one.step, one.role, model, f"≥ {calls}" if one.is_lower_bound else calls, *others, basis])
    sums = map(known_sum, zip(*counted, strict=True)) if counted else [0.0] * len([*_COLUMNS][_NUMBERS])
    rows.append(["all", "", "", *_number_cells(list(sums)), ""])
    header, right = list(_COLUMNS), {*range(len(_COLUMNS))[_NUMBERS]}
    if not wide:
        kept = [column for column, short_name in enumerate(_COLUMNS.values()) if short_name]
        rows = [[*row[:2], middle_cut(row[2]), *(row[column] for column in kept[3:])] for row in rows]
        header, right = [*filter(None, _COLUMNS.values())], {*range(3, len(kept))}
    return markdown_table(header, rows, right=frozenset(right))


def _number_cells(numbers: Sequence[float | None]) -> list[str]:
    *counts, expected_usd, cost_usd, gpu_hours = numbers
    texts = ["unknown" if number is None else whole(int(number)) for number in counts]
    return [*texts, dollars(expected_usd), dollars(cost_usd), hours(gpu_hours)]


def estimate_notes(estimates: Sequence[CallEstimate]) -> list[str]:
    """Explain the numbers of the table, and list the prices with their dates."""
    notes = []
    if any(estimate.calls for estimate in estimates):
        notes.append(
            "At most: every reply has its maximum length, and every unparseable grade uses all attempts. Calls "
            "repeated after a failure are not counted."
        )
    if any(e.expected and e.expected.basis == TYPICAL and e.price and e.price.output for e in estimates):
        notes.append(
            f"Expected from {TYPICAL}: lengths of GPT-4's replies in the sample records of the original code, scaled "
            "by the number of skills. A model that reasons first uses more tokens; after a small run, the estimate "
            "uses the averages of the model."
        )
    if any(estimate.is_lower_bound for estimate in estimates):
        notes.append("A dataset step stops at its target, so its expected cost is between the costs of its two rows.")
    by_model: dict[str, list[CallEstimate]] = {}
    prices: dict[str, Price] = {}
    for one in estimates:
        if one.price is None or one.price.is_zero:
            continue
        prices[f"{short_spec(one.model)}{' in batches' if one.is_batch else ''}"] = one.price
        if one.batch_share and not one.is_lower_bound:
            by_model.setdefault(one.model, []).append(one)
    for model, own in sorted(by_model.items()):
        expected = _both_costs((one, one.expected.cost_usd if one.expected else 0.0) for one in own)
        at_most = _both_costs((one, one.cost_usd) for one in own)
        notes.append(
            f"{short_spec(model)}: in batches (batch: true), {dollars(expected[0])} US dollars are expected and "
            f"{dollars(at_most[0])} at most; with direct calls, {dollars(expected[1])} and {dollars(at_most[1])}."
        )
    for model, price in sorted(prices.items()):
        noted = f"noted on {price.noted}" if price.noted else "without a date in the price file"
        source = f"; {price.source}" if price.source else ""
        per_million = f"{price.input:g} and {price.output:g} US dollars per million input and output tokens"
        notes.append(f"Price of {model}: {per_million} ({noted}{source}).")
    return notes


def _both_costs(costs: Iterable[tuple[CallEstimate, float | None]]) -> tuple[float, float]:
    """Return the total cost of a model's calls if all were sent in batches, and if all were direct calls."""
    in_batches = direct = 0.0
    for one, cost in costs:
        share = one.batch_share or 1.0
        in_batches += (cost or 0.0) * (1.0 if one.is_batch else share)
        direct += (cost or 0.0) / (share if one.is_batch else 1.0)
    return in_batches, direct


def budget_warnings(estimates: Sequence[CallEstimate], budget: BudgetSettings) -> Iterator[str]:
    """Warn about old prices, and about limits below the expected or maximum cost or number of calls."""
    yield from price_warnings({short_spec(e.model): e.price for e in estimates})
    counted = [estimate for estimate in estimates if not estimate.is_lower_bound]
    cost = known_sum(e.cost_usd for e in counted)
    expected = known_sum(e.expected.cost_usd for e in counted if e.expected)
    if budget.max_usd is not None and (cost is None or expected is None):
        unknown = ", ".join(sorted({e.model for e in counted if e.cost_usd is None}))
        yield f"budget.max_usd cannot be enforced: the price of {unknown} is unknown"
    calls = sum(e.expected.calls for e in counted if e.expected), sum(e.calls for e in counted)
    for name, limit, least, most, digits, unit in (
        ("max_usd", budget.max_usd, expected, cost, 2, "US dollars"),
        ("max_calls", budget.max_calls, *calls, 0, "calls"),
    ):
        if limit is None or least is None or most is None or limit >= max(least, most):
            continue
        need, may = (
            (f"expected {least:,.{digits}f}", "will") if limit < least else (f"maximum of {most:,.{digits}f}", "may")
        )
        yield f"budget.{name} is {limit:,.{digits}f}, below the {need} {unit}: the run {may} stop before its end"


def batch_share(settings: Settings, prices: dict[str, Price]) -> float | None:
    """Return the price of a model's calls in batches as a share of the direct price; None if it has no batches."""
    spec = parse_spec(str(settings.asked))
    dialect = None if spec.replicas else dialect_of(spec, settings.batch or True)
    price = price_of(spec, prices)
    if dialect is None or price is None:
        return None
    return dialect.factor if price.batch is None else price.batch


def price_of_calls(settings: Settings, prices: dict[str, Price]) -> Price | None:
    """Return the price of a model's calls, at the batch rate if they are sent in batches; None if unknown."""
    spec = parse_spec(str(settings.asked))
    price = price_of(spec, prices)
    dialect = dialect_of(spec, settings.batch) if settings.batch else None
    return price if price is None or dialect is None else price.in_batch(dialect.factor)
