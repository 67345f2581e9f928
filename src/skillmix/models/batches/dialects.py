"""How providers of batches differ: limits, states, prices and paths; `data/models/batches.yaml` has a row for each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit

from skillmix.models.providers import shipped_table
from skillmix.models.specs import ModelSpec, provider_of

BatchState = Literal["in progress", "ended", "ended early", "failed"]
"""What a provider's state means.

- in progress: the provider works on the batch; an unknown state counts as this one.
- ended: every call has its result.
- ended early: the batch expired or was cancelled; the calls without a result were not made.
- failed: the provider refused the whole batch, and made no call.
"""
Shape = Literal["files", "inline"]
"""Whether the requests are uploaded as a file, or are part of the call that creates the batch."""


@dataclass(frozen=True, slots=True)
class BatchDialect:
    """One provider's form of batches."""

    name: str
    shape: Shape
    most_requests: int
    most_bytes: int
    """Limits of one batch."""
    states: Mapping[str, BatchState]
    """The provider's states in small letters."""
    factor: float = 0.5
    """The price of a call in a batch, as a share of its price outside; the price file may say another."""
    hosts: tuple[str, ...] = ()
    """Ends of host names that speak this dialect."""
    batches: str = "/batches"
    """The path of the list of batches."""
    endpoint: str = "/v1/chat/completions"
    """The path that the lines of a file name."""
    query: str = ""
    """What follows the path at an address that does not end in /v1."""
    key_header: str | None = None
    """A second header that carries the key."""
    unready_files: tuple[str, ...] = ()
    """States in which an uploaded file cannot be used yet."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """The HTTP status that a call outside a batch has, by the type of an error."""

    def state(self, word: str) -> BatchState:
        """What one of the provider's states means.

        >>> DIALECTS["openai"].state("COMPLETED"), DIALECTS["openai"].state("dreaming")
        ('ended', 'in progress')
        """
        return self.states.get(word.casefold().strip(), "in progress")


DIALECTS: Final = {name: BatchDialect(name, **facts) for name, facts in shipped_table("batches").items()}
"""The dialects by name; a provider lists those that it has."""


def dialect_of(spec: ModelSpec, choice: bool | str) -> BatchDialect | None:
    """The dialect that `batch: CHOICE` means for a model; None if its provider has no such batches.

    >>> dialect_of(ModelSpec("openai", "my-deployment", "https://me.openai.azure.com/openai/v1"), True).name
    'azure'
    """
    own = [DIALECTS[name] for name in provider_of(spec).batches]
    if isinstance(choice, str):
        return next((dialect for dialect in own if dialect.name == choice), None)
    host = urlsplit(spec.address or "").hostname or ""
    at_host = [dialect for dialect in own if dialect.hosts and host.endswith(dialect.hosts)]
    return next(iter([*at_host, *own]), None)


def batch_fault(spec: ModelSpec, choice: bool | str) -> str | None:
    """Why a model cannot have `batch: CHOICE`, in words; None if it can."""
    if choice is False:
        return None
    known = ", ".join(DIALECTS)
    if isinstance(choice, str) and choice not in DIALECTS:
        return f"batch is true, false or one of {known}, and not {choice!r}"
    if dialect_of(spec, choice) is None:
        own = provider_of(spec).batches
        return (
            f"batch: {choice} is not for {spec.provider}: models, which have {' and '.join(own)}"
            if own
            else f"{spec.provider}: models have no batches; leave batch out"
        )
    if spec.replicas:
        return "a batch goes to one server: give one address, or leave batch out"
    return None
