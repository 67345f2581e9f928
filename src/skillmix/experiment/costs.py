"""Token prices, upper bounds on the cost of calls, and GPU hours of local models."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from skillmix.calls import Request
from skillmix.errors import UserError
from skillmix.experiment.train_step import DEFAULT_STEPS, TrainStep
from skillmix.files import SHIPPED, checked_yaml, parsed_json
from skillmix.models.checkpoints import base_and_adapters, parameters_in
from skillmix.models.shapes import CopiedShape, shape_of
from skillmix.models.specs import ModelSpec, parse_spec, provider_of

_CHARACTERS_PER_TOKEN: Final = 3
"""Characters per token for upper bounds; texts usually have more."""
_USUAL_CHARACTERS_PER_TOKEN: Final = 4
"""Typical characters per token: English prose has 4 to 5, and tables have fewer."""
_LONGEST_REPLY: Final = 4096


Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Day = Annotated[str, BeforeValidator(lambda day: TypeAdapter(date).validate_python(day).isoformat())]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Price:
    """US dollars per million tokens."""

    input: Dollars
    output: Dollars
    noted: Day | None = None
    """The date of the price, such as 2026-01-31."""
    source: str | None = None
    """The source of the price."""
    batch: Annotated[float, Field(ge=0, le=1)] | None = None
    """The price in batches as a share of this price; None for the provider's usual share."""

    def in_batch(self, usual: float) -> "Price":
        """Return the price in batches; `usual` is the share to charge if the price does not set `batch`.

        >>> Price(10.0, 30.0).in_batch(0.5).output
        15.0
        """
        share = usual if self.batch is None else self.batch
        return replace(self, input=share * self.input, output=share * self.output, batch=share)

    @property
    def is_zero(self) -> bool:
        """Whether tokens are free, as on the user's own server."""
        return not self.input and not self.output

    def of(self, input_tokens: float, output_tokens: float) -> float:
        """Compute the cost of input and output tokens in US dollars."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6

    def worst(self, request: Request) -> float:
        """Compute an upper bound on the cost of a request."""
        if self.is_zero:
            return 0.0
        characters = len(request.decoding.extra or "")
        for text in (message.content for message in request.messages):
            characters += len(text)
            if not text.isascii():  # a character outside ASCII may take one token per byte
                others = sum(not letter.isascii() for letter in text)
                other_bytes = len(text.encode("utf-8", "surrogatepass")) - len(text) + others
                characters += _CHARACTERS_PER_TOKEN * other_bytes - others
        return request.prompts * self.of(tokens_in(characters), request.decoding.max_tokens or _LONGEST_REPLY)


def tokens_in(characters: int) -> int:
    """Compute an upper bound on the number of tokens in a text of this length."""
    return characters // _CHARACTERS_PER_TOKEN + 1


def usual_tokens_in(characters: float) -> float:
    """Estimate the number of tokens in an English text of this length."""
    return characters / _USUAL_CHARACTERS_PER_TOKEN


def price_of(spec: ModelSpec, prices: dict[str, Price]) -> Price | None:
    """Return a model's price, or None if unknown. Models on this machine are free unless the price file lists them."""
    listed = prices.get(f"{spec.provider}:{spec.name}")
    hosts = {urlsplit(address).hostname for address in spec.addresses}
    is_here = bool(hosts) and hosts <= {"localhost", "127.0.0.1", "::1"}
    if listed is None and (provider_of(spec).is_free or is_here):
        return Price(0.0, 0.0)
    return listed


def load_prices(path: Path | None) -> dict[str, Price]:
    """Read the user's price file, or else the shipped one."""
    hint = "Write one line per model, such as openai:gpt-4o: {input: 2.5, output: 10.0, noted: 2026-01-31}."
    return checked_yaml(path or SHIPPED / "prices.yaml", dict[str, Price], hint=hint)


_OLD: Final = 90
"""The age in days after which a price should be checked."""


def price_warnings(prices: Mapping[str, Price | None], *, today: date | None = None) -> Iterator[str]:
    """Yield a warning for each model whose price is old."""
    for name, price in sorted(prices.items()):
        if price is None or price.is_zero or price.noted is None:
            continue
        if ((today or datetime.now(UTC).date()) - date.fromisoformat(price.noted)).days > _OLD:
            yield (
                f"the price of {name} is from {price.noted}, more than {_OLD} days ago: check it, or refresh it with "
                "`skillmix prices --from LIST`"
            )


def refreshed_prices(
    prices: Mapping[str, Price], wanted: Iterable[str], content: bytes | str, *, source: str
) -> tuple[dict[str, Price], list[str]]:
    """Refresh prices from the price list of LiteLLM or OpenRouter; also return the models that the list lacks."""
    hint = "Give LiteLLM's JSON price list, or OpenRouter's list of models."
    document = parsed_json(content, source=source, hint=hint)
    if not isinstance(document, dict):
        raise UserError(f"{source} is not a price list.", hint=hint)
    listed: dict[str, tuple[object, object]] = {}
    if isinstance(document.get("data"), list):
        for entry in document["data"]:
            if isinstance(entry, dict) and isinstance(costs := entry.get("pricing"), dict):
                listed[f"openrouter:{entry.get('id')}"] = costs.get("prompt"), costs.get("completion")
    else:
        for name, entry in document.items():
            if isinstance(entry, dict):
                owner = str(entry.get("litellm_provider"))
                spec = f"{owner.removesuffix('_ai')}:{name.removeprefix(f'{owner}/')}"
                listed[spec] = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
    today = datetime.now(UTC).date().isoformat()
    refreshed, missing = dict(prices), []
    for spec in dict.fromkeys([*prices, *wanted]):
        try:
            read, written = (round(1e6 * float(str(cost)), 6) for cost in listed[spec])
            batch = prices[spec].batch if spec in prices else None
            refreshed[spec] = Price(read, written, noted=today, source=source, batch=batch)
        except (KeyError, ValueError):  # the list lacks the model, or its price is not a number
            missing.append(spec)
    return refreshed, missing


def prices_as_yaml(prices: Mapping[str, Price]) -> str:
    """Format prices as a price file with one line for each model."""
    import yaml

    lines = [
        yaml.safe_dump(
            {spec: {name: value for name, value in asdict(price).items() if value is not None}},
            default_flow_style=None,
            sort_keys=False,
            allow_unicode=True,
            width=1_000_000,
        )
        for spec, price in prices.items()
    ]
    return "".join(["# US dollars per million tokens, by model string without its base URL.\n", *lines])


PEAK: Final = 989e12
"""The peak rate of one H200, in dense bfloat16 operations per second."""
TRAINING: Final = (0.20, 0.55)
GENERATION: Final = (0.06, 0.37)
"""Measured shares of one H200's peak (bench/README.md), for models below a billion weights and for larger ones."""
NOTE: Final = (
    f"GPU hours are for one H200 at measured speeds: training reaches {TRAINING[1]:.0%} of the peak "
    f"({TRAINING[0]:.0%} below a billion weights), generation {GENERATION[1]:.0%} ({GENERATION[0]:.0%}). "
    "Training tokens are an upper bound, with every conversation at its maximum length."
)
_SIZE: Final = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(b|m)(?![a-z0-9])", re.IGNORECASE)


def training_tokens(step: TrainStep, *, conversations: int | None) -> int | None:
    """Return an upper bound on the tokens of a train step; None if the number of conversations is unknown."""
    if step.epochs is not None and conversations is None:
        return None
    seen = (step.steps or DEFAULT_STEPS) * step.batch if step.epochs is None else step.epochs * (conversations or 0)
    replayed = step.replay.ratio * (step.replay.max_tokens or step.max_tokens) if step.replay else 0.0
    return round(seen * (step.max_tokens + replayed))


def training_hours(step: TrainStep, model: str, tokens: int | None) -> float | None:
    """Estimate the GPU hours of a train step, fewer for an adapter, because frozen weights need no gradients."""
    return _hours(model, tokens, operations=4 if step.lora else 6, shares=TRAINING)


def generation_hours(model: str, tokens: int) -> float | None:
    """Estimate the GPU hours of a local model's generation; 0 for a remote model."""
    if not provider_of(model).has_checkpoint:
        return 0.0
    return _hours(model, tokens, operations=2, shares=GENERATION)


def parameters_of(model: str) -> float | None:
    """Read a model's number of weights from its files, or else from its name; return None if unknown."""
    spec = parse_spec(model)
    shape = shape_of(spec)
    if shape is not None:
        return parameters_of(shape.spec) if isinstance(shape, CopiedShape) else shape.weights
    path = Path(base_and_adapters(spec)[0]).expanduser()
    folder = path if spec.provider != "bundled" and path.is_dir() else None
    if folder is not None and (parameters := parameters_in(folder)):
        return parameters
    sizes = _SIZE.findall(base_and_adapters(spec)[0].rsplit("/", 1)[-1])
    return float(sizes[0][0]) * {"b": 1e9, "m": 1e6}[sizes[0][1].lower()] if sizes else None


def _hours(model: str, tokens: int | None, *, operations: int, shares: tuple[float, float]) -> float | None:
    weights = parameters_of(model)
    if weights is None or tokens is None:
        return None
    return operations * weights * tokens / (shares[weights >= 1e9] * PEAK) / 3600
