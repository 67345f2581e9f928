"""Turn what pip prints when it fails into a message that says what is wrong and what to do. No effects."""

import re
from dataclasses import dataclass

_UNREACHABLE = ("Retrying (", "Max retries exceeded", "NewConnectionError", "NameResolutionError", "ReadTimeoutError")
_MISSING = re.compile(r"No matching distribution found for ([^\s;(]+)")
_NOISE = ("WARNING:", "[notice]", "DEPRECATION:", "Collecting ", "Downloading ", "Using cached ", "  ", "$ ")


@dataclass(frozen=True, slots=True)
class Failure:
    """A message and what to do about it."""

    message: str
    hint: str


def failure_of(output: str, *, installing: str, log: str) -> Failure:
    r"""Explain the output of a pip that failed while it was installing something.

    >>> failure_of("WARNING: Retrying (…)\nERROR: No matching distribution found for torch==2.13.0",
    ...            installing="torch", log="setup.log").message
    'Cannot reach the package index: torch 2.13.0 is missing.'
    """
    found = _MISSING.findall(output)
    missing = readable(found[-1]) if found else installing
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return Failure(
            f"The disk became full during the installation of {installing}.",
            "Free some space, or move folders to another disk with VENV=, TMPDIR= and PIP_CACHE_DIR=; then run again.",
        )
    if "CERTIFICATE_VERIFY_FAILED" in output:
        return Failure(
            f"Cannot trust the certificate of the package index: {missing} is missing.",
            "Behind a proxy with its own certificate, set PIP_CERT to its file, and run again.",
        )
    if any(sign in output for sign in _UNREACHABLE):
        return Failure(
            f"Cannot reach the package index: {missing} is missing.",
            "Check the network and pip's settings (pip config list), and run again: what is installed stays.",
        )
    if found:
        return Failure(
            f"The package index has no {missing} for this Python and this machine.",
            "Use another Python (make run PYTHON=python3.12) or another torch (make run TORCH='torch>=2.6').",
        )
    last = "\n".join(f"  {line}" for line in useful_lines(output))
    return Failure(f"The installation of {installing} failed:\n{last}", f"Everything pip printed is in {log}.")


def readable(requirement: str) -> str:
    """Return a requirement as words.

    >>> readable("torch==2.13.0"), readable("hatchling>=1.25")
    ('torch 2.13.0', 'hatchling>=1.25')
    """
    return requirement.replace("==", " ")


def useful_lines(output: str, *, at_most: int = 8) -> list[str]:
    r"""Return the last lines that say something, errors before anything else.

    >>> useful_lines("Collecting x\nERROR: it broke\n[notice] A new release of pip")
    ['ERROR: it broke']
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip() and not line.startswith(_NOISE)]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["(it printed nothing)"])[-at_most:]
