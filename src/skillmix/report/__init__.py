"""`skillmix report`: the pages, tables and figures about runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_cycle_search() -> Iterator[None]:
    """Disable the garbage collector: modules and records have no cycles, and searching for cycles takes time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Mark the records of the report as old, so that the next small collection does not visit all of them.
        gc.freeze()
        gc.unfreeze()
        if was_on:
            gc.enable()
