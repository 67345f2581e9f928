"""Seconds that a model takes before its first text, by what they were spent on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Literal

StartupPart = Literal["importing", "loading", "compiling"]


@dataclass(frozen=True, slots=True)
class StartupSeconds:
    """Wall seconds in which a model could not write; work that ran ahead in another thread does not count."""

    importing: float = 0.0
    """Importing torch and transformers, or waiting for the thread that imports them."""
    loading: float = 0.0
    """Reading weights and tokenizer, and copying the weights to the device."""
    compiling: float = 0.0
    """Allocating slots, compiling kernels, capturing graphs, and on a CPU trying the width of products."""

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.importing + self.loading + self.compiling

    def __add__(self, other: "StartupSeconds") -> "StartupSeconds":
        return StartupSeconds(
            **{part.name: getattr(self, part.name) + getattr(other, part.name) for part in fields(self)}
        )


class StartupClock:
    """Measures the parts of a start; parts that are measured inside another part count only once, as their own."""

    def __init__(self) -> None:
        self.seconds = StartupSeconds()
        """The seconds measured so far."""
        self._inner = 0.0

    @contextmanager
    def measuring(self, part: StartupPart) -> Iterator[None]:
        """Add the duration of a block to a part."""
        outer, self._inner = self._inner, 0.0
        started = time.perf_counter()
        try:
            yield
        finally:
            whole = time.perf_counter() - started
            self.seconds = replace(self.seconds, **{part: getattr(self.seconds, part) + whole - self._inner})
            self._inner = outer + whole
