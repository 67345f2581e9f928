"""Requests come back with their tokens, in order, at once or from a thread."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from skillmix.calls import Decoding, GenerateKey, Message, Request

pytest.importorskip("torch", reason="the extra `local` is not installed")

from skillmix.models.local.tokenising import DirectTokeniser, ThreadedTokeniser


class Lengths:
    """A renderer whose prompts have one token: the length of the first message."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def tokens(self, conversations: Sequence[tuple[Message, ...]], _: object) -> list[list[int]]:
        assert self.may_go_on.wait(10)
        return [[len(turns[0].content)] for turns in conversations]


def request(number: int) -> Request:
    messages = (Message("user", "x" * (number + 1)),)
    return Request(GenerateKey("s", str(number), 0, 1), "m", messages, Decoding(0.7, 4), number)


@pytest.mark.parametrize("kind", [DirectTokeniser, ThreadedTokeniser])
def test_requests_come_back_in_order(kind: Any) -> None:
    tokeniser = kind(Lengths())
    requests = [request(number) for number in range(600)]
    tokeniser.add(requests[:7])
    tokeniser.add(requests[7:])

    found = []
    while not tokeniser.is_empty:
        found += tokeniser.take(wait=True)

    assert found == [(asked, [number + 1]) for number, asked in enumerate(requests)]
    assert tokeniser.take(wait=True) == []


def test_a_thread_that_is_busy_is_not_waited_for() -> None:
    renderer: Any = Lengths()
    renderer.may_go_on.clear()
    tokeniser = ThreadedTokeniser(renderer)
    tokeniser.add([request(0)])

    assert tokeniser.take(wait=False) == []
    assert not tokeniser.is_empty
    renderer.may_go_on.set()
    assert tokeniser.take(wait=True) == [(request(0), [1])]


def test_an_error_of_the_thread_is_raised_when_its_requests_are_taken() -> None:
    class Broken(Lengths):
        def tokens(self, conversations: Sequence[tuple[Message, ...]], _: object) -> list[list[int]]:
            raise ValueError("no template")

    renderer: Any = Broken()
    tokeniser = ThreadedTokeniser(renderer)
    tokeniser.add([request(0)])

    with pytest.raises(ValueError, match="no template"):
        tokeniser.take(wait=True)
