"""Decide which key goes to which address.

A provider's own key goes to that provider alone; any other key goes only where an experiment file sends it.
"""

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
class Server:
    """The address of a server, with the key for it."""

    address: str
    secret: str | None
    variable: str | None
    """The environment variable that holds the key; None if no key is sent."""
    is_own: bool
    """Whether the server belongs to the provider itself."""


def server_of(spec: ModelSpec, access: Access) -> Server:
    """The only server of a model, with its key; an error if the key may not go there."""
    (server,) = servers_of(spec, access)
    return server


def servers_of(spec: ModelSpec, access: Access) -> tuple[Server, ...]:
    """The servers of a model, each with the key for its address; an error if a key may not go to one of them."""
    addresses = spec.addresses or (_ADDRESSES[spec.provider],)
    return tuple(_server_at(address, spec, access) for address in addresses)


def _server_at(address: str, spec: ModelSpec, access: Access) -> Server:
    is_own = _owner(address) == spec.provider
    variable = access.key or (provider_of(spec).key if is_own else None)
    if variable is None:
        return Server(address, None, None, is_own)
    _refuse_other_owner(variable, address)
    _refuse_plain_http(variable, address, access)
    secret = _key_from_environment(variable)
    MASK.add(secret)
    return Server(address, secret, variable, is_own)


def _owner(address: str) -> str | None:
    """The provider that an address belongs to."""
    parts = urlsplit(address)
    for provider, own in _ADDRESSES.items():
        if parts.scheme == "https" and parts.hostname == urlsplit(own).hostname and parts.port in (None, 443):
            return provider
    return None


def _refuse_other_owner(variable: str, address: str) -> None:
    owner = _KEY_OWNERS.get(variable)
    if owner is not None and _owner(address) != owner:
        raise UserError(
            f"{variable} is not sent to {address}: it goes to {_ADDRESSES[owner]} only.",
            hint="Put the key for this address into another variable, and name that variable with `key:`.",
        )


def _refuse_plain_http(variable: str, address: str, access: Access) -> None:
    if urlsplit(address).scheme == "http" and not is_loopback(address) and not access.insecure:
        raise UserError(
            f"{variable} is not sent to {address}: anyone on the network could read it.",
            hint="Use https, or set `insecure: true` for this model if you trust the network.",
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
    """Read a key from the environment; keys are read from nowhere else."""
    secret = os.environ.get(name, "")
    if not secret:
        raise UserError(
            f"{name} is not set.",
            hint=f"export {name}=… and run the command again; the key is never written to a file.",
        )
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise UserError(
            f"{name} is not a key: it contains a space, a line break or a character that an HTTP header cannot hold.",
            hint=f"export {name} again without that character.",
        )
    return secret
