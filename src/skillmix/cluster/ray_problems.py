"""What Ray's errors mean for the driver of a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from skillmix.errors import UserError, visible
from skillmix.runs.leases.driving import LostWorker, UnreachableWorker


@contextmanager
def translated(forget: Callable[[], object]) -> Iterator[None]:
    """Raise what a failed call of an actor means; `forget` is called if the actor has ended."""
    from ray.exceptions import ActorDiedError, RayError, RayTaskError

    try:
        yield
    except ActorDiedError:
        forget()
        raise LostWorker("its process or its machine has ended") from None
    except RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, UserError) else error from None
    except RayError as error:  # such as an answer that was lost with its node: the next exchange shows what holds
        raise UnreachableWorker(first_line(error)) from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, safe to print."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return visible(lines[0]).rstrip(".:")
