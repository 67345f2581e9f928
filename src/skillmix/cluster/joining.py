"""Join the Ray cluster of RAY_ADDRESS, or start one on this machine; this module does not import Ray."""

import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from skillmix.cluster.node_workers import first_line
from skillmix.errors import UserError, visible

_REACH_S: Final = 20.0
_LISTENER: Final = "listen_error_messages"
_MODE: Final = "RAY_AUTH_MODE"
_TOKENS: Final = f"Set {_MODE}=token on each machine, and give each the head's token: the file ~/.ray/auth_token."


def join_cluster(ray: Any) -> None:
    """Join the cluster of RAY_ADDRESS, or start one here; Ray's handler of SIGTERM does not stay."""
    address = os.environ.get("RAY_ADDRESS") or "local"
    _require_reachable(address)
    _require_welcome(ray, address)
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        with _without_paragraphs(ray):
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except _joining_errors(ray) as error:
        if address == "local":
            raise UserError(
                f"A Ray cluster cannot be started on this machine: {_first_sentence(error)}.",
                hint="Check the variables RAY_… of the environment, and the log files of Ray in /tmp/ray.",
            ) from None
        raise UserError(
            f"The Ray cluster {visible(address)} cannot be joined: {first_line(error)}.",
            hint="Check RAY_ADDRESS; without it, a cluster is started on this machine.",
        ) from None
    finally:
        with suppress(ValueError):  # in another thread than the main one, Ray could not replace it
            signal.signal(signal.SIGTERM, terminate)


def _require_reachable(address: str) -> None:
    """Refuse an address at which nothing listens: Ray would try it for minutes, with many lines."""
    if address.startswith("ray://"):
        raise UserError(
            f"RAY_ADDRESS is {visible(address)}, the address of a Ray client.",
            hint="Start the run on a machine of the cluster, with the HOST:PORT that `ray start` prints.",
        )
    if not _is_explicit(address):
        return  # "local", "auto", or something that Ray refuses at once
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"The Ray cluster {visible(address)} cannot be reached: {getattr(error, 'strerror', None) or error}.",
            hint="Check RAY_ADDRESS, and that `ray start --head` runs there.",
        ) from None


def _require_welcome(ray: Any, address: str) -> None:
    """Refuse a cluster that asks for another token: Ray would try for 20 s, and not name the token as the reason.

    A machine that has a token starts clusters that ask for it. With an explicit address Ray sends no token unless
    RAY_AUTH_MODE asks for that. Ray has no public function for this question; with a version that names its own
    otherwise, the question is left out.
    """
    inner: Any = getattr(ray, "_raylet", None)
    errors: Any = getattr(ray, "exceptions", None)
    client, tokens = getattr(inner, "GcsClient", None), getattr(inner, "AuthenticationTokenLoader", None)
    if client is None or tokens is None or not hasattr(errors, "AuthenticationError") or not _is_explicit(address):
        return
    sends = os.environ.get(_MODE, "").lower() == "token"
    try:
        if sends and not tokens.instance().has_token(ignore_auth_mode=True):  # the client would end this process
            raise UserError(f"{_MODE} is token, and this machine has no token of Ray.", hint=_TOKENS)
    except errors.AuthenticationError as error:
        raise UserError(f"The token of Ray cannot be read: {_first_sentence(error)}.", hint=_TOKENS) from None
    try:
        with _muted():
            client(address=address)
    except errors.AuthenticationError:
        why = "has another one than this machine" if sends else f"{_MODE} is not set to token here"
        raise UserError(f"The Ray cluster {visible(address)} asks for a token, and {why}.", hint=_TOKENS) from None
    except errors.RayError as error:
        raise UserError(
            f"The Ray cluster {visible(address)} does not answer: {first_line(error)}.",
            hint="Check RAY_ADDRESS, and that `ray start --head` runs there: something else may listen at that port.",
        ) from None


def _first_sentence(error: BaseException) -> str:
    """The first sentence of an error; Ray adds several sentences of advice to it."""
    return first_line(error).partition(". ")[0]


def _is_explicit(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdigit()


def _joining_errors(ray: Any) -> tuple[type[Exception], ...]:
    own = getattr(getattr(ray, "exceptions", None), "RayError", ValueError)
    return (ConnectionError, RuntimeError, ValueError, own)


@contextmanager
def _muted() -> Iterator[None]:
    """Let code in C++ write no lines to standard error, which no setting of Ray prevents."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _without_paragraphs(ray: Any) -> Iterator[None]:
    """Let Ray not print its paragraphs about lost workers, which it writes to standard output; lines of ours say it.

    Ray has no setting for this. With a version that names its function otherwise, the paragraphs appear.
    """
    worker = getattr(getattr(ray, "_private", None), "worker", None)
    listen = getattr(worker, _LISTENER, None)
    if listen is not None:
        setattr(worker, _LISTENER, lambda *_: None)
    try:
        yield
    finally:
        if listen is not None:
            setattr(worker, _LISTENER, listen)
