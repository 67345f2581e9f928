"""Open the batches of a model."""

from skillmix.models.batches.batch_client import BatchClient, LineServer
from skillmix.models.batches.dialects import BatchDialect
from skillmix.models.batches.file_batches import FileBatches
from skillmix.models.batches.inline_batches import InlineBatches
from skillmix.models.servers.anthropic import AnthropicModel
from skillmix.models.servers.keys import server_of
from skillmix.models.servers.openai import ChatServer
from skillmix.models.specs import ModelOptions, ModelSpec


def open_batches(spec: ModelSpec, options: ModelOptions, dialect: BatchDialect) -> BatchClient:
    """The batches of a model, with the key that its calls are sent with."""
    if dialect.shape == "inline":
        return InlineBatches(dialect, AnthropicModel(spec, options))
    server: LineServer = ChatServer(
        server_of(spec, options.access), spec.name, options.timeout, key_header=dialect.key_header
    )
    return FileBatches(dialect, server)
