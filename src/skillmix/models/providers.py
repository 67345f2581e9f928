"""The table of providers: every word that may precede the colon in a model's spec, with the provider's properties.

A new provider is a row in `data/models/providers.yaml`; a provider without a known protocol also needs a class in a
separate file. An installed package may add providers (`models/installed.py`).
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from skillmix.files import SHIPPED, read_yaml


@dataclass(frozen=True, slots=True)
class Provider:
    """One row of the table; the head of `providers.yaml` explains the fields."""

    name: str
    form: str
    model: str | Callable[..., Any] | None = None
    is_in_process: bool = False
    is_engine: bool = False
    has_checkpoint: bool = False
    is_free: bool = False
    needs_name: bool = True
    stays_here: bool = False
    address: str | None = None
    address_variable: str | None = None
    key: str | None = None
    key_header: str | None = None
    seed_field: str | None = "seed"
    batches: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    check: str | None = None
    closed_hint: str | None = None
    is_listed: bool = True

    @property
    def is_served(self) -> bool:
        """Return whether the provider's models are called at an address."""
        return self.address is not None or self.address_variable is not None

    @property
    def own_address(self) -> str | None:
        """The address of the provider's own server, or of the user's server at the provider."""
        return self.address or (os.environ.get(self.address_variable) if self.address_variable else None)


def shipped_table(name: str) -> dict[str, dict[str, Any]]:
    """Return the rows of one of the package's tables about models, by name."""
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
