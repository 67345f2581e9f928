"""Decide what a set-up installs, how many megabytes it takes, and whether the disks have room. No effects."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Build(StrEnum):
    """The kinds of torch that a set-up can install."""

    CPU = "CPU build"
    CUDA = "CUDA build"
    CUDA_TRIMMED = "CUDA build without the parts that only a GPU uses"


@dataclass(frozen=True, slots=True)
class Cost:
    """Megabytes (of 10^6 bytes) of a stage."""

    download: int
    disk: int
    at_once: int | None = None
    """The largest download of one call of pip, which lies in the temporary folder until the call ends; None for all."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a set-up, with a stamp of its own."""

    name: str
    title: str
    cost: Cost


# Measured with `make run` and `make test` in fresh clones on Linux x86-64, Python 3.11. The sizes on disk are in the
# last line of each stage. The downloads are the sums of the wheel sizes that pip names in .venv/setup.log. For the CPU
# build it is the size of its wheel and an estimate for its small dependencies, for the full CUDA build that of the
# trimmed one with the wheels that were left out.
EMPTY_VENV_MB = 20
TORCH_COSTS = {
    Build.CPU: Cost(download=202, disk=904),
    Build.CUDA: Cost(download=2742, disk=4950, at_once=527),
    Build.CUDA_TRIMMED: Cost(download=2342, disk=3980, at_once=527),
}
PACKAGE_COST = Cost(download=167, disk=735)
TESTS_COST = Cost(download=153, disk=731)
DOCS_COST = Cost(download=100, disk=453)
VOCABULARIES_COST = Cost(download=17, disk=61)
MODEL_COST = Cost(download=93, disk=541)
MODEL_PEAK_MB = 740  # 93 + 98 + 541: the package, the file in it and the converted copy lie side by side for a moment

MARGIN = 1.1  # newer versions of packages may be larger than those that were measured

# Packages that torch loads only when it computes on a GPU. The versions satisfy what this torch asks for.
GPU_ONLY = {"torch==2.13.0": {"triton": "3.7.1", "nvidia-cusolver": "12.0.4.66"}}
LEFT_OUT = "left.out"  # the local version label of the empty packages that stand in for them


def stages(goal: str, build: Build, *, torch: str = "torch") -> list[Stage]:
    """Return the stages of `make run`, `make test` or `make docs`, in order; the bundled model is not one of them."""
    if goal == "docs":
        return [Stage("docs", "skillmix without local models, and what builds its pages", DOCS_COST)]
    run = [
        Stage("torch", f"{torch}, {build}", TORCH_COSTS[build]),
        Stage("package", "skillmix and the packages it uses", PACKAGE_COST),
    ]
    test = [
        Stage("tests", "what the tests use", TESTS_COST),
        Stage("vocabularies", "vocabularies of other models", VOCABULARIES_COST),
    ]
    return run if goal == "run" else run + test


def needs_model(goal: str) -> bool:
    """Return whether a goal needs torch and the bundled model."""
    return goal != "docs"


def index_name(requirement: str) -> str | None:
    """Return the name that an index can be asked for; None for files and addresses.

    >>> index_name("torch>=2.6"), index_name("./torch-2.13.0-cp311-linux.whl")
    ('torch', None)
    """
    found = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)(\s*[<>=!~\[].*)?", requirement)
    return found[1] if found and not requirement.endswith(".whl") else None


def chosen_version(requirement: str, versions: Sequence[str]) -> str | None:
    """Return the version that pip takes out of those an index lists, newest first.

    >>> chosen_version("torch==2.13.0", ["2.15.0", "2.13.0+cpu", "2.13.0"])
    '2.13.0+cpu'
    >>> chosen_version("torch", ["2.15.0", "2.13.0+cpu"])
    '2.15.0'
    """
    _, pinned, wanted = requirement.partition("==")
    if not pinned:
        return versions[0] if versions else None
    matching = (version for version in versions if wanted in (version, version.partition("+")[0]))
    return next(matching, None)


def build_of(version: str | None, *, requirement: str, has_gpu: bool, is_linux: bool) -> Build:
    """Return the build of torch that belongs to a version and a machine; unknown versions on Linux are CUDA builds."""
    if not is_linux or (version or "").endswith("+cpu"):
        return Build.CPU
    if has_gpu or requirement not in GPU_ONLY:
        return Build.CUDA
    return Build.CUDA_TRIMMED


def gpu_libraries(requires: Sequence[str]) -> list[str]:
    """Return the large requirements of torch one by one; the small ones are left to the last call of pip.

    >>> gpu_libraries(["sympy>=1.13.3", "cuda-toolkit[cublas,cufft]==13.0.3", "triton==3.7.1; python_version < '3.15'"])
    ['cuda-toolkit[cublas]==13.0.3', 'cuda-toolkit[cufft]==13.0.3', "triton==3.7.1; python_version < '3.15'"]
    """
    found = []
    for requirement in requires:
        if not requirement.startswith(("cuda-", "nvidia-", "triton")) or "extra ==" in requirement:
            continue
        extras = re.match(r"([\w.-]+)\[([^\]]+)\](.*)", requirement)
        parts = [f"{extras[1]}[{extra.strip()}]{extras[3]}" for extra in extras[2].split(",")] if extras else []
        found += parts or [requirement]
    return found


@dataclass(frozen=True, slots=True)
class Places:
    """The folders that a set-up fills."""

    venv: Path
    temporary: Path
    pip_cache: Path | None
    """None if pip keeps no cache."""
    model_cache: Path


@dataclass(frozen=True, slots=True)
class Need:
    """Room that one folder needs."""

    folder: Path
    purpose: str
    variable: str
    """The variable that moves the folder to another disk."""
    mb: int


def needs(
    missing: Sequence[Stage], *, of: Sequence[Stage], places: Places, venv_mb: int, model_is_ready: bool
) -> list[Need]:
    """Return the room that the missing stages need; what an interrupted set-up has already installed is subtracted."""
    target = EMPTY_VENV_MB + sum(stage.cost.disk for stage in of)
    growth = min(sum(stage.cost.disk for stage in missing) + EMPTY_VENV_MB, max(0, target - venv_mb))
    costs = [stage.cost for stage in missing] + ([] if model_is_ready else [MODEL_COST])
    copies = 1 if places.pip_cache is None else 2  # pip writes what goes into its cache to a second temporary file
    at_once = max((cost.at_once or cost.download for cost in costs), default=0)
    found = [
        Need(places.venv, "the virtual environment", "VENV", _with_margin(growth if missing else 0)),
        Need(places.temporary, "downloads in progress", "TMPDIR", _with_margin(at_once * copies)),
    ]
    if places.pip_cache is not None:
        total = sum(stage.cost.download for stage in missing)
        found.append(Need(places.pip_cache, "pip's cache", "PIP_CACHE_DIR", _with_margin(total)))
    if not model_is_ready:
        found.append(Need(places.model_cache, "the bundled model", "SKILLMIX_CACHE", _with_margin(MODEL_PEAK_MB)))
    return [need for need in found if need.mb > 0]


def _with_margin(mb: int) -> int:
    return round(mb * MARGIN)


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk, as one of its folders shows it."""

    identity: int
    free_mb: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """A disk with too little room, and everything that would be put on it."""

    needs: tuple[Need, ...]
    free_mb: int

    @property
    def needed_mb(self) -> int:
        """Return the room that all folders on the disk need together."""
        return sum(need.mb for need in self.needs)


def shortages(needed: Sequence[Need], disk_of: Callable[[Path], Disk]) -> list[Shortage]:
    """Return the disks that lack room. Folders on the same disk are added up."""
    disks: dict[int, tuple[Disk, list[Need]]] = {}
    for need in needed:
        disk = disk_of(need.folder)
        disks.setdefault(disk.identity, (disk, []))[1].append(need)
    found = [Shortage(tuple(together), disk.free_mb) for disk, together in disks.values()]
    return [shortage for shortage in found if shortage.needed_mb > shortage.free_mb]


def size(mb: int) -> str:
    """Return a size for people.

    >>> size(541), size(2041)
    ('541 MB', '2.0 GB')
    """
    return f"{mb} MB" if mb < 1000 else f"{mb / 1000:.1f} GB"


def announcement(missing: Sequence[Stage], *, places: Places, venv_mb: int, model_is_ready: bool) -> str:
    """Return the text that is printed before anything is downloaded."""
    rows = [(stage.title, stage.cost) for stage in missing]
    if not model_is_ready:
        rows.append((f"the bundled model, in {places.model_cache}", MODEL_COST))
    width = max(len(title) for title, _ in rows)
    lines = [f"  {title:<{width}}  {size(cost.download):>8}  {size(cost.disk):>8}" for title, cost in rows]
    download, disk = sum(cost.download for _, cost in rows), sum(cost.disk for _, cost in rows)
    first = f"Setting up {places.venv}, once."
    if venv_mb > 2 * EMPTY_VENV_MB:
        first = f"Going on with {places.venv}, which holds {size(venv_mb)}. At most this is missing:"
    return "\n".join(
        [
            first,
            f"  {'':<{width}}  download   on disk",
            *lines,
            f"  {'together, about':<{width}}  {size(download):>8}  {size(disk):>8}",
        ]
    )


def refusal(short: Sequence[Shortage], *, goal: str) -> tuple[str, str]:
    """Return the message and the hint for disks that lack room."""
    lines = ["There is too little room on the disk, so nothing was downloaded."]
    for shortage in short:
        lines.append(f"  {size(shortage.needed_mb)} needed, {size(shortage.free_mb)} free, for:")
        lines += [f"    {need.purpose}: {size(need.mb)} in {need.folder}" for need in shortage.needs]
    moves = " ".join(f"{need.variable}=FOLDER" for shortage in short for need in shortage.needs)
    return "\n".join(lines), f"Free some space, or put some of it on another disk, each time: make {goal} {moves}"
