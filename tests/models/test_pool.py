"""How much a pool asks at once."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from skillmix.calls import CallProblem, Outcome, Reply, Request
from skillmix.models.simple import Pool
from tests.models.stub import request


def room_after(outcomes: list[Outcome], *, limit: int = 64) -> int:
    answers = iter(outcomes)

    async def answer(_: Request) -> Outcome:
        await asyncio.sleep(0)
        return next(answers)

    async def stream() -> AsyncIterator[Request]:
        for number in range(len(outcomes)):
            yield request(number)

    async def main() -> int:
        pool = Pool(answer, limit=limit)
        assert len([result async for result in pool.serve(stream())]) == len(outcomes)
        return pool.room

    return asyncio.run(main())


GOOD, AWAY = Reply("x"), CallProblem("passing", "HTTP 429")
MOVED = CallProblem("passing", "HTTP 429", may_move=True)


@pytest.mark.parametrize(
    ("outcomes", "room"),
    [
        ([GOOD] * 500, 64),
        (([GOOD] * 19 + [AWAY]) * 25, 64),
        ([AWAY] * 13, 32),
        ([AWAY] * (13 + 7 + 4), 8),
        ([AWAY] * 500, 1),
        ([MOVED] * 500, 64),
    ],
    ids=[
        "all is well",
        "one in twenty at random",
        "turned away",
        "turned away for long",
        "down",
        "taken by another address",
    ],
)
def test_the_room_shrinks_when_many_are_turned_away(outcomes: list[Outcome], room: int) -> None:
    assert room_after(outcomes) == room


def test_the_room_grows_again() -> None:
    assert room_after([AWAY] * 60 + [GOOD] * 1500) == 64
