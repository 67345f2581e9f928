"""Prices of tokens, and upper bounds for the cost of a call."""

from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from skillmix.calls import Request
from skillmix.catalog.files import SHIPPED
from skillmix.catalog.validation import fault_words, known_keys
from skillmix.catalog.yaml import read_shared_yaml
from skillmix.errors import faults_error
from skillmix.models.specs import ModelSpec, provider_of

_CHARACTERS_PER_TOKEN: Final = 3
"""Real texts have more characters per token, so estimates are too high rather than too low."""
_USUAL_CHARACTERS_PER_TOKEN: Final = 4
"""English prose has 4 to 5, and tables have fewer."""
_LONGEST_REPLY: Final = 4096


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input: float
    output: float
    noted: str | None = None
    """The day on which the price was written down, as in 2026-01-31; None if the price file does not say."""
    source: str | None = None
    """Where the price comes from."""
    batch: float | None = None
    """The price of a call in a batch, as a share of this price; None leaves it to the provider's batches."""

    def in_batch(self, usual: float) -> "Price":
        """The price of calls in batches, where `usual` is the share that applies unless this price has its own.

        >>> Price(10.0, 30.0).in_batch(0.5).output
        15.0
        """
        share = usual if self.batch is None else self.batch
        return replace(self, input=share * self.input, output=share * self.output, batch=share)

    @property
    def is_zero(self) -> bool:
        """Whether tokens cost nothing, as those of a server of one's own."""
        return not self.input and not self.output

    def of(self, input_tokens: float, output_tokens: float) -> float:
        """The cost of a number of tokens."""
        return (input_tokens * self.input + output_tokens * self.output) / 1e6

    def worst(self, request: Request) -> float:
        """An upper bound for the cost of a request."""
        if self.is_zero:
            return 0.0
        characters = sum(_weight(message.content) for message in request.messages) + len(request.decoding.extra or "")
        return request.prompts * self.of(tokens_in(characters), request.decoding.max_tokens or _LONGEST_REPLY)


def _weight(text: str) -> int:
    """The number of ASCII characters that has as many tokens; another character may be one token per byte."""
    if text.isascii():
        return len(text)
    others = sum(not letter.isascii() for letter in text)
    other_bytes = len(text.encode("utf-8", "surrogatepass")) - len(text) + others
    return len(text) - others + _CHARACTERS_PER_TOKEN * other_bytes


def tokens_in(characters: int) -> int:
    """An upper bound for the number of tokens in a text of that length."""
    return characters // _CHARACTERS_PER_TOKEN + 1


def usual_tokens_in(characters: float) -> float:
    """The number of tokens in an English text of that length."""
    return characters / _USUAL_CHARACTERS_PER_TOKEN


def price_of(spec: ModelSpec, prices: dict[str, Price]) -> Price | None:
    """The price of a model; None if it is unknown. Models on this machine are free unless the price file lists them."""
    listed = prices.get(f"{spec.provider}:{spec.name}")
    hosts = {urlsplit(address).hostname for address in spec.addresses}
    is_here = bool(hosts) and hosts <= {"localhost", "127.0.0.1", "::1"}
    if listed is None and (provider_of(spec).is_free or is_here):
        return Price(0.0, 0.0)
    return listed


_Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    input: _Dollars
    output: _Dollars
    noted: date | None = None
    source: str | None = None
    batch: Annotated[float, Field(ge=0, le=1)] | None = None


def load_prices(path: Path | None) -> dict[str, Price]:
    """Read the user's price file, or the one in the package."""
    file = path or SHIPPED / "prices.yaml"
    shape = dict[str, _Entry]
    try:
        entries = TypeAdapter(shape).validate_python(read_shared_yaml(file))
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, e['loc'])) or 'the file'}: {fault_words(e, keys=known_keys(shape, e['loc']))}"
            for e in error.errors()
        ]
        raise faults_error(
            str(file), faults, hint="A line looks like openai:gpt-4o: {input: 2.5, output: 10.0, noted: 2026-01-31}."
        ) from None
    return {
        spec: Price(
            entry.input, entry.output, entry.noted.isoformat() if entry.noted else None, entry.source, entry.batch
        )
        for spec, entry in entries.items()
    }
