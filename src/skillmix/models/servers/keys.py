"""Determine which key is sent to which server, and through which proxy.

A provider's own key is sent only to that provider, and any other key only to the addresses of the model for which an
experiment file names it.
"""

import os
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from skillmix.errors import UserError
from skillmix.models.servers.masking import MASK
from skillmix.models.specs import PROVIDERS, Access, ModelSpec, Provider, address_fault, provider_of

_KEY_OWNERS: Final = {provider.key: provider for provider in PROVIDERS.values() if provider.key}


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server, with its key."""

    address: str
    secret: str | None
    variable: str | None  # the environment variable that contains the key; None if no key is sent
    is_own: bool  # whether the server belongs to the provider itself
    query: str = ""  # the query string of every request, such as `api-version=2024-10-21`
    proxy: str | None = None


def servers_of(spec: ModelSpec, access: Access) -> tuple[Server, ...]:
    """Return a model's servers, each with its key; raise an error if a key may not be sent to one of the servers."""
    provider, addresses, servers = provider_of(spec), spec.addresses, []
    if not addresses:
        name, own = provider.address_variable, provider.own_address
        fault = address_fault(own, provider) if own and name else None
        if own is None or fault:
            raise UserError(
                f"{name}: {fault}" if fault else f"{spec} has no address, and {name} is not set.",
                hint=f"Set it to the address of your Azure resource: export {name}=https://NAME.openai.azure.com",
            )
        addresses = (own.rstrip("/"),)
    for address in addresses:
        is_own = _is_own(provider, address)
        variable = access.key or (provider.key if is_own else None)
        if variable is None and provider.address_variable and not is_loopback(address):
            raise UserError(
                f"There is no key for {address}: {provider.key} is sent only to the address in "
                f"{provider.address_variable}.",
                hint=f"export {provider.address_variable}={address}, or name the variable of another key with `key:`.",
            )
        place, query = _azure_place(address, spec.name) if provider.name == "azure" else (address, "")
        secret = None
        if variable is not None:
            owner = _KEY_OWNERS.get(variable)
            if owner is not None and not _is_own(owner, address):
                only = owner.address or f"the address in {owner.address_variable}"
                raise UserError(
                    f"{variable} is sent only to {only}, not to {address}.",
                    hint="Store the key for this address in another variable, and name that variable with `key:`.",
                )
            if urlsplit(address).scheme == "http" and not is_loopback(address) and not access.insecure:
                raise UserError(
                    f"{variable} is not sent to {address} without encryption, because others could read it.",
                    hint="Use https, or set `insecure: true` for this model if you trust the network.",
                )
            secret = _key_from_environment(variable)
            MASK.add(secret)
        proxy = _proxy_for(address) if access.proxy else None
        servers.append(Server(place, secret, variable, is_own, query, proxy))
    return tuple(servers)


def _azure_place(address: str, deployment: str) -> tuple[str, str]:
    """Return the base URL and query string of a deployment; a version in the URL selects Azure's older paths."""
    parts = urlsplit(address)
    place = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    if not parts.query:
        return (place if parts.path.strip("/") else f"{place}/openai/v1"), ""
    place = place if parts.path.strip("/") else f"{place}/openai"
    return f"{place}/deployments/{quote(deployment, safe='')}", parts.query


def _is_own(provider: Provider, address: str) -> bool:
    """Return whether an address belongs to the provider's own server."""
    parts, own = urlsplit(address), urlsplit(provider.own_address or "")
    return parts.scheme == own.scheme == "https" and parts.hostname == own.hostname and parts.port in (None, 443)


def _proxy_for(address: str) -> str | None:
    """Return the proxy that the environment sets for a URL; None if `NO_PROXY` exempts it."""
    parts = urlsplit(address)
    if is_loopback(address) or proxy_bypass(parts.hostname or ""):
        return None
    proxy = getproxies().get(parts.scheme)
    if proxy is None:
        raise UserError(
            f"`proxy: true` is set, but the environment has no proxy for {address}.",
            hint=f"export {parts.scheme.upper()}_PROXY=http://HOST:PORT, or remove `proxy`.",
        )
    MASK.add(unquote(urlsplit(proxy).password or ""))
    return proxy


def is_loopback(address: str) -> bool:
    """Return whether an address refers to this machine.

    >>> is_loopback("http://127.0.0.1:8000/v1"), is_loopback("http://127.0.0.1.example/v1")
    (True, False)
    """
    host = urlsplit(address).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _key_from_environment(name: str) -> str:
    """Read a key from the environment, which is the only source of keys."""
    secret = os.environ.get(name, "")
    if not secret:
        raise UserError(
            f"The environment variable {name} is not set.",
            hint=f"Set it to your API key, which skillmix never writes to a file: export {name}=KEY",
        )
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise UserError(
            f"{name} does not contain a valid key: it has a space, a line break or a character that is not ASCII.",
            hint=f"export {name} again without that character.",
        )
    return secret
