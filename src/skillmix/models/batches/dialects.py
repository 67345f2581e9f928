"""Differences between providers' batches: limits, states, prices and paths, from `data/models/batches.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import urlsplit

from skillmix.models.specs import ModelSpec, provider_of, shipped_table

BatchState = Literal["in progress", "ended", "ended early", "failed"]


@dataclass(frozen=True, slots=True)
class BatchDialect:
    """A row of `batches.yaml`, whose head explains the fields."""

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


def dialect_of(spec: ModelSpec, choice: bool | str) -> BatchDialect | None:
    """Return the dialect that `batch: CHOICE` means for a model; None if its provider has no such batches.

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
    if isinstance(choice, str) and choice not in DIALECTS:
        return f"batch must be true, false or one of {', '.join(DIALECTS)}, not {choice!r}"
    own = provider_of(spec).batches
    if not own:
        return f"{spec.provider}: models do not support batches; remove batch"
    if dialect_of(spec, choice) is None:
        return f"{spec.provider}: models do not support batch: {choice}; write {' or '.join(own)}"
    return "a batch goes to one server; give one URL, or remove batch" if spec.replicas else None
