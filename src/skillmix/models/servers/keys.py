"""Which key goes to which address: a provider's own to that provider alone, any other one only where it is named."""

import os
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from skillmix.errors import UserError
from skillmix.models.servers.masking import MASK
from skillmix.models.specs import PROVIDERS, Access, ModelSpec, provider_of

_ADDRESSES: Final = {name: provider.address for name, provider in PROVIDERS.items() if provider.address}
_KEY_OWNERS: Final = {provider.key: name for name, provider in PROVIDERS.items() if provider.key}


@dataclass(frozen=True, slots=True)
class Door:
    """An address with the key for it."""

    address: str
    secret: str | None
    variable: str | None
    """Where the key came from; None if none is sent."""
    is_own: bool
    """Whether the address is the provider's own."""


def door_of(spec: ModelSpec, access: Access) -> Door:
    """Where a model is asked, and with which key; an error if the key may not go there."""
    address = spec.address or _ADDRESSES[spec.provider]
    is_own = _owner(address) == spec.provider
    variable = access.key or (provider_of(spec).key if is_own else None)
    if variable is None:
        return Door(address, None, None, is_own)
    _refuse_other_owner(variable, address)
    _refuse_plain_http(variable, address, access)
    secret = _key_from_environment(variable)
    MASK.add(secret)
    return Door(address, secret, variable, is_own)


def _owner(address: str) -> str | None:
    """The provider whose own address this is."""
    parts = urlsplit(address)
    for provider, own in _ADDRESSES.items():
        if parts.scheme == "https" and parts.hostname == urlsplit(own).hostname and parts.port in (None, 443):
            return provider
    return None


def _refuse_other_owner(variable: str, address: str) -> None:
    owner = _KEY_OWNERS.get(variable)
    if owner is not None and _owner(address) != owner:
        raise UserError(
            f"{variable} is not sent to {address}: it goes to {_ADDRESSES[owner]} alone.",
            hint="Put the key of this address into a variable of its own, and name that one with `key:`.",
        )


def _refuse_plain_http(variable: str, address: str, access: Access) -> None:
    if urlsplit(address).scheme == "http" and not is_loopback(address) and not access.insecure:
        raise UserError(
            f"{variable} is not sent to {address}: everybody on the way could read it.",
            hint="Use https, or set `insecure: true` for this model if the network is your own.",
        )


def is_loopback(address: str) -> bool:
    """Whether an address is on this machine.

    >>> is_loopback("http://127.0.0.1:8000/v1"), is_loopback("http://127.0.0.1.example/v1")
    (True, False)
    """
    host = urlsplit(address).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _key_from_environment(name: str) -> str:
    """A key from the environment, which is the only place for one."""
    secret = os.environ.get(name, "")
    if not secret:
        raise UserError(f"{name} is not set.", hint=f"export {name}=… before running; it is never written anywhere.")
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise UserError(
            f"{name} is not a key: it holds a space, a line break or a letter that no header can hold.",
            hint=f"export {name} again without it.",
        )
    return secret
