"""Experiments of the repository that also ship in the wheel, below `data/shipped/`."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from skillmix.errors import UserError
from skillmix.render import name_hint

_PACKAGE: Final = Path(str(files("skillmix")))
_EXPERIMENTS: Final = "experiments"


def _root() -> Path:
    """The folder with `experiments/`: in the wheel, or else the root of the checkout."""
    packed = _PACKAGE / "data" / "shipped"
    return packed if packed.is_dir() else _PACKAGE.parents[1]


def shipped_experiments() -> dict[str, Path]:
    """The files of the experiments that ship, by name."""
    return {file.stem: file for file in sorted((_root() / _EXPERIMENTS).glob("*.yaml"))}


def experiment_file(name: Path) -> Path:
    """The file that a user means: one of their own, or else one that ships: `smoke` or `experiments/smoke.yaml`."""
    if name.suffix or len(name.parts) != 1 or _is_file(name):
        return own_or_shipped(name)
    shipped = shipped_experiments()
    if name.name in shipped:
        return shipped[name.name]
    others = f"Shipped: {', '.join(shipped)}. Or give the path of a file."
    raise UserError(
        f"There is no experiment {name.name!r}, and no file of this name.",
        hint=name_hint(name.name, list(shipped), otherwise=others),
    )


def own_or_shipped(name: str | Path) -> Path:
    """The path that a name leads to; the user's own file or folder comes before an experiment that ships.

    >>> own_or_shipped("experiments/smoke.yaml").is_file(), own_or_shipped("experiments/unknown.yaml").is_file()
    (True, False)
    """
    path = Path(name).expanduser()
    if _exists(path) or ".." in path.parts:
        return path
    packed = _root() / path
    return packed if len(path.parts) == 2 and path.parts[0] == _EXPERIMENTS and packed.exists() else path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the name is too long, for instance
        return True
