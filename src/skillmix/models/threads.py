"""How the threads of torch wait on a CPU."""

import os


def calm_threads() -> None:
    """Set, before torch is loaded, how long threads spin while they wait for each other.

    Threads that spin for long make a busy machine many times slower, threads that do not spin at all an idle one by
    half.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
