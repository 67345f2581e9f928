"""The table of providers: each word that may stand before the colon of a model's spec, with what is special about it.

A new provider is a row of `data/models/providers.yaml`; one that speaks no known protocol also needs a class in a
separate file. An installed package may bring further providers (`models/installed.py`).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from skillmix.files import SHIPPED, read_yaml


@dataclass(frozen=True, slots=True)
class Provider:
    """One row of the table."""

    name: str
    form: str
    """How its specs are written, with an example."""
    model: str | Callable[..., Any] | None = None
    """The class of its models as `module:class`, or a function that opens one; None if there is no model to call."""
    is_in_process: bool = False
    """Whether its models need the memory of this machine or of its GPU, so that only one of them is open at a time.

    A model without weights, such as a scripted one, is not in process in this sense.
    """
    is_engine: bool = False
    """Whether this package itself computes the replies: its limits apply, and weights are read ahead."""
    has_checkpoint: bool = False
    """Whether its specs name checkpoint folders, which can be trained, merged and measured."""
    is_free: bool = False
    """Whether its calls cost nothing unless the price file says otherwise."""
    needs_name: bool = True
    """Whether a spec must say more than the provider's name."""
    stays_here: bool = False
    """Whether its models are called in the process of the command even with `--on ray`."""
    address: str | None = None
    """The provider's own server; a spec may name a compatible server instead, as in `openai:NAME@URL`."""
    address_variable: str | None = None
    """Environment variable with the address of the user's own server at the provider."""
    key: str | None = None
    """Environment variable with the key for that server."""
    key_header: str | None = None
    """A second header that carries the key."""
    seed_field: str | None = "seed"
    """What the seed of a call is named in a request; None if the provider takes none."""
    batches: tuple[str, ...] = ()
    """The forms of batches that it has, its own first."""
    packages: tuple[str, ...] = ()
    """Packages that its models need in this process, all in the extra `local` of skillmix."""
    check: str | None = None
    """A function, as `module:function`, that refuses a name which no model of the provider can have."""
    closed_hint: str | None = None
    """For a provider without models to call: why there is nothing to call."""
    is_listed: bool = True
    """Whether users write its specs; those of an import are not offered to them."""

    @property
    def is_served(self) -> bool:
        """Whether its models are called at an address."""
        return self.address is not None or self.address_variable is not None

    @property
    def has_replicas(self) -> bool:
        """Whether a spec may name several servers with the same model, as in `openai:NAME@URL1,URL2`."""
        return self.is_served and self.model == _CHAT

    @property
    def own_address(self) -> str | None:
        """The address of the provider's own server, or of the user's server at the provider."""
        return self.address or (os.environ.get(self.address_variable) if self.address_variable else None)


_CHAT: Final = "skillmix.models.servers.protocols:OpenAIModel"


def shipped_table(name: str) -> dict[str, dict[str, Any]]:
    """The rows of one of the package's tables about models, by name."""
    rows: Any = read_yaml(SHIPPED / "models" / f"{name}.yaml")
    return {
        row: {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
        for row, facts in rows.items()
    }


PROVIDERS: Final[Mapping[str, Provider]] = {
    name: Provider(name, **facts) for name, facts in shipped_table("providers").items()
}
"""The providers of this package, by name."""
LOCAL_PACKAGES: Final = PROVIDERS["local"].packages
