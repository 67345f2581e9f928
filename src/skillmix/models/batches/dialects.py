"""Differences between the batch interfaces of providers: limits, states, prices and paths.

`data/models/batches.yaml` contains a row for each provider.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit

from skillmix.models.specs import ModelSpec, provider_of, shipped_table

BatchState = Literal["in progress", "ended", "ended early", "failed"]


@dataclass(frozen=True, slots=True)
class BatchDialect:
    """One provider's form of batches; the head of `batches.yaml` explains the fields."""

    name: str
    shape: Literal["files", "inline"]
    most_requests: int
    most_bytes: int
    states: Mapping[str, BatchState]
    factor: float = 0.5
    hosts: tuple[str, ...] = ()
    batches: str = "/batches"
    endpoint: str = "/v1/chat/completions"
    query: str = ""
    key_header: str | None = None
    unready_files: tuple[str, ...] = ()
    statuses: Mapping[str, int] = field(default_factory=dict)

    def state(self, word: str) -> BatchState:
        """Return the meaning of a provider's state.

        >>> DIALECTS["openai"].state("COMPLETED"), DIALECTS["openai"].state("dreaming")
        ('ended', 'in progress')
        """
        return self.states.get(word.casefold().strip(), "in progress")


DIALECTS: Final = {name: BatchDialect(name, **facts) for name, facts in shipped_table("batches").items()}
"""The dialects by name; each provider lists the dialects that it supports."""


def dialect_of(spec: ModelSpec, choice: bool | str) -> BatchDialect | None:
    """Return the dialect that `batch: CHOICE` means for a model; None if its provider does not offer such batches.

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
    """Explain why a model cannot use `batch: CHOICE`; None if it can."""
    if choice is False:
        return None
    known = ", ".join(DIALECTS)
    if isinstance(choice, str) and choice not in DIALECTS:
        return f"batch is true, false or one of {known}, not {choice!r}"
    if dialect_of(spec, choice) is None:
        own = provider_of(spec).batches
        return (
            f"batch: {choice} is not for {spec.provider}: models, which have {' and '.join(own)}"
            if own
            else f"{spec.provider}: models have no batches; remove batch"
        )
    if spec.replicas:
        return "a batch is sent to one server: give one URL, or remove batch"
    return None
