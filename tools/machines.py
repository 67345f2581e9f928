"""Run tests that could depend on a processor's rounding, imitating other processors: `python tools/machines.py`.

Settings of torch and of its libraries make this processor compute with the instructions of an older or another
processor. The tests with the marker `machine` must pass under each setting. `--quick`, which `make test` uses, runs
only the few tests that found the most errors, under the setting that differs most from a native run.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from skillmix.runs.run import processor_name

SETTINGS: Final = (
    "ATEN_CPU_CAPABILITY=default",
    "ATEN_CPU_CAPABILITY=avx2",
    "MKL_CBWR=COMPATIBLE",
    "MKL_CBWR=AVX2",
    "ONEDNN_MAX_CPU_ISA=SSE41",
    "ONEDNN_MAX_CPU_ISA=AVX2",
)
QUICK: Final = "MKL_CBWR=AVX2"
QUICK_TESTS: Final = (
    "tests/models/test_batch_independence.py",
    "tests/models/test_cpu_products.py",
    "tests/training/test_checkpoints.py",
)
_CLOSING: Final = re.compile(r"(\d+) (passed|failed|errors?)\b")


@dataclass(frozen=True)
class Imitation:
    """A setting that imitates another processor, and the number of threads."""

    setting: str
    threads: int

    def run(self, tests: tuple[str, ...], *, is_quick: bool) -> "Result":
        """Run tests in a separate process and count the tests that pass."""
        variable, _, value = self.setting.partition("=")
        environment = {**os.environ, variable: value, "OMP_NUM_THREADS": str(self.threads)}
        environment["OMP_WAIT_POLICY"] = "PASSIVE"  # idle threads of the two test processes must not occupy the cores
        if not is_quick:
            environment["SKILLMIX_MACHINES"] = "1"
        # A quick run gives each worker whole files, because making a file's model takes seconds.
        spread = "loadfile" if is_quick else "load"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "machine", "-n", "2", "--dist", spread, *tests]
        started = time.monotonic()
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        counts = {word.rstrip("s"): int(number) for number, word in _CLOSING.findall(ended.stdout)}
        return Result(self, ended.returncode, counts.get("passed", 0), time.monotonic() - started, ended.stdout)


@dataclass(frozen=True)
class Result:
    """The result of the tests under a setting."""

    imitation: Imitation
    status: int
    passed: int
    seconds: float
    output: str

    @property
    def is_good(self) -> bool:
        """Whether tests ran and none failed."""
        return self.status == 0 and self.passed > 0

    def line(self) -> str:
        """Return the line to print."""
        about = f"{self.imitation.setting}, {self.imitation.threads} thread{'s' * (self.imitation.threads > 1)}"
        verdict = f"{self.passed} passed" if self.is_good else f"FAILED (exit status {self.status})"
        return f"{about:<42} {verdict}, {self.seconds:.0f} s"


def main() -> int:
    """Run the tests under every setting and print each outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one setting, the tests that depend on it most")
    is_quick: bool = parser.parse_args().quick
    print(f"processor: {processor_name()}, {os.cpu_count()} cores, torch {version('torch')}", flush=True)
    imitations = [Imitation(setting, threads) for setting in SETTINGS for threads in (1, 2)]
    if is_quick:
        imitations = [Imitation(QUICK, 1)]
    failed = 0
    for imitation in imitations:
        result = imitation.run(QUICK_TESTS if is_quick else ("tests",), is_quick=is_quick)
        print(result.line(), flush=True)
        if not result.is_good:
            failed += 1
            print(result.output[-6000:], flush=True)
    print(f"settings: {len(imitations) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
