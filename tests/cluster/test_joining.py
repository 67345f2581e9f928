"""Joining a Ray cluster, and the errors that say why that fails."""

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import pytest

from skillmix.cluster.joining import join_cluster
from skillmix.errors import UserError

REAL: Final = [
    pytest.mark.skipif(not os.environ.get("SKILLMIX_LONG"), reason="starts a cluster; set SKILLMIX_LONG=1"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


class RayError(Exception):
    """As Ray has it."""


class AuthenticationError(RayError):
    """As Ray has it."""


def played_ray(answer: Callable[[], object] = object, *, has_token: bool = True) -> Any:
    """A Ray whose cluster gives this answer to a client."""

    def client(*, address: str) -> object:
        os.write(2, b"a line that C++ writes\n")
        return answer()

    tokens = SimpleNamespace(instance=lambda: SimpleNamespace(has_token=lambda ignore_auth_mode: has_token))
    return SimpleNamespace(
        init=mock.Mock(),
        exceptions=SimpleNamespace(RayError=RayError, AuthenticationError=AuthenticationError),
        _raylet=SimpleNamespace(GcsClient=client, AuthenticationTokenLoader=tokens),
    )


def raising(error: Exception) -> Callable[[], object]:
    def answer() -> object:
        raise error

    return answer


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address at which something listens, in RAY_ADDRESS."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        text = f"127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", text)
        yield text


def test_an_address_at_which_nothing_listens_is_one_short_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for address, message in (
        (f"127.0.0.1:{port}", "cannot be reached: Connection refused"),
        ("127.0.0.1:99999999", "cannot be reached"),
        ("ray://127.0.0.1:10001", "the address of a Ray client"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        ray = played_ray()
        with pytest.raises(UserError, match=message):
            join_cluster(ray)
        ray.init.assert_not_called()


def test_a_cluster_that_answers_is_joined_without_lines_of_ray(address: str, capfd: pytest.CaptureFixture[str]) -> None:
    ray = played_ray()

    join_cluster(ray)

    assert ray.init.call_args.args == (address,)
    assert capfd.readouterr().err == ""
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "later\n", "standard error is as it was"


@pytest.mark.parametrize(
    ("mode", "why"), [(None, "RAY_AUTH_MODE is not set to token here"), ("token", "has another one than this machine")]
)
def test_a_cluster_with_another_token_is_named_as_such(
    mode: str | None, why: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    ray = played_ray(raising(AuthenticationError("InvalidAuthToken")))

    with pytest.raises(UserError, match=why) as caught:
        join_cluster(ray)

    assert "auth_token" in (caught.value.hint or "")
    ray.init.assert_not_called()


def test_a_machine_without_a_token_does_not_ask_a_cluster(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of Ray ends the whole process then."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    ray = played_ray(raising(AssertionError("asked")), has_token=False)

    with pytest.raises(UserError, match="this machine has no token"):
        join_cluster(ray)


def test_a_token_that_cannot_be_read_is_one_short_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    ray = played_ray()

    def refuse(ignore_auth_mode: bool) -> bool:
        raise AuthenticationError(
            "RAY_AUTH_TOKEN_PATH is set but file cannot be opened: /t.txt. Ensure that it is there."
        )

    ray._raylet.AuthenticationTokenLoader.instance = lambda: SimpleNamespace(has_token=refuse)

    with pytest.raises(UserError) as caught:
        join_cluster(ray)

    found = "RAY_AUTH_TOKEN_PATH is set but file cannot be opened: /t.txt"
    assert caught.value.message == f"The token of Ray cannot be read: {found}."


def test_a_cluster_that_does_not_start_here_is_not_called_one_of_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = played_ray()
    ray.init.side_effect = RayError("No space is left. Try this. Or that.")

    with pytest.raises(UserError) as caught:
        join_cluster(ray)

    assert caught.value.message == "A Ray cluster cannot be started on this machine: No space is left."
    assert "RAY_ADDRESS" not in (caught.value.hint or "")


def test_an_address_of_something_else_is_no_cluster(address: str) -> None:
    ray = played_ray(raising(RayError("Timed out while waiting for GCS to become available.")))

    with pytest.raises(UserError, match="does not answer: Timed out"):
        join_cluster(ray)


@pytest.mark.parametrize("error", [RayError("no token"), RuntimeError("no token"), ConnectionError("no token")])
def test_an_error_of_ray_is_one_of_the_user(error: Exception, address: str) -> None:
    ray = played_ray()
    ray.init.side_effect = error

    with pytest.raises(UserError, match="cannot be joined: no token"):
        join_cluster(ray)


def test_a_version_of_ray_with_other_names_is_joined(address: str) -> None:
    ray = SimpleNamespace(init=mock.Mock())

    join_cluster(ray)

    ray.init.assert_called_once()


def real(mark: Callable[..., None]) -> Callable[..., None]:
    for condition in REAL:
        mark = condition(mark)
    return mark


@real
def test_a_real_cluster_with_a_token_refuses_who_has_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    others = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    join = "import ray; from skillmix.cluster.joining import join_cluster as join; join(ray); print(len(ray.nodes()))"
    ends = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # paths of sockets must be short
        plain |= {"HOME": folder}
        start = [
            "start",
            "--head",
            f"--port={port}",
            "--num-cpus=1",
            "--include-dashboard=false",
            f"--temp-dir={folder}",
        ]
        command = [sys.executable, "-m", "ray.scripts.scripts", *start]
        try:
            subprocess.run(command, env=plain | token, check=True, capture_output=True)
            for own in ({}, {"RAY_AUTH_MODE": "token"}, others, token):
                environment = plain | own | {"RAY_ADDRESS": f"127.0.0.1:{port}"}
                ends.append(
                    subprocess.run(
                        [sys.executable, "-c", join], env=environment, capture_output=True, text=True, timeout=60
                    )
                )
        finally:
            subprocess.run(["pkill", "-KILL", "-f", folder], check=False)  # `ray stop` would end other clusters as well

    assert "is not set to token here" in ends[0].stderr
    assert "this machine has no token" in ends[1].stderr
    assert "has another one" in ends[2].stderr
    assert ends[3].stdout.strip() == "1", ends[3].stderr
