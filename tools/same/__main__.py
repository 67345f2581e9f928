"""Run `python -m tools.same check [OLD]` (which `make same` calls), `… write FOLDER` or `… compare OLD NEW`.

OLD is a git revision, the word `baseline`, or a folder that `write` made. Without OLD, code with uncommitted changes is
compared with HEAD, and code without uncommitted changes with HEAD~1. The exit status is 0 without differences, 1 with
differences, and 2 if the comparison could not be made.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.same.compare import differences, files_of
from tools.same.outputs import PARTS, ROOT, SKIPPED, Place, Problem, make

BASELINE: Final = "7208247a3a4b42c882fc1d36827556ceead8c073"
"""The revision that `baseline` means: the last revision before the rewrite of how runs are stored and read."""
PREFIX: Final = "skillmix-same-"
"""The prefix of temporary folders, which compare.py replaces in outputs."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one of the three commands."""
    options = _parser().parse_args(words)
    try:
        if options.command == "compare":
            old, new = _checked(options.old), _checked(options.new)
            return _compare(old, new, sorted({*_parts_of(old), *_parts_of(new)}))
        if options.command == "write":
            return _write_to(options.folder, options.revision, options.only or list(PARTS))
        return _check(options.old, options.only)
    except Problem as problem:
        sys.stderr.write(f"error: {problem}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.same", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="compare the current code with another revision or with earlier outputs")
    check.add_argument("old", nargs="?", help="a revision, `baseline`, or a folder that `write` made")
    write = commands.add_parser("write", help="write the outputs of the current code to a new folder")
    write.add_argument("folder", type=Path)
    write.add_argument("--revision", help="use this revision instead of the current code")
    for one in (check, write):
        one.add_argument(
            "--only", nargs="+", choices=PARTS, metavar="PART", help=f"only these parts: {', '.join(PARTS)}"
        )
    compare = commands.add_parser("compare", help="compare two folders of outputs")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    return parser


def _check(old: str | None, only: Sequence[str] | None) -> int:
    if old and Path(old).is_dir():
        folder = _checked(Path(old))
        parts = only or _parts_of(folder)
        with _outputs(None, parts) as new:
            return _compare(folder, new, parts)
    parts = only or list(PARTS)
    with _outputs(old or default_revision(), parts) as before, _outputs(None, parts) as after:
        return _compare(before, after, parts)


def default_revision() -> str:
    """Return the revision before the latest changes, whether these changes are committed or not."""
    return "HEAD" if _git("status", "--porcelain").strip() else "HEAD~1"


def _write_to(folder: Path, revision: str | None, parts: Sequence[str]) -> int:
    if folder.exists():
        raise Problem(f"{folder} already exists.")
    with _outputs(revision, parts) as outputs:
        shutil.move(outputs, folder)
    return 0


def _compare(old: Path, new: Path, parts: Sequence[str]) -> int:
    """Print the differences between two folders, the parts that were skipped, and how many files were compared."""
    found = 0
    for part in parts:
        for difference in differences(old / part, new / part):
            found += 1
            _say(f"{part}/{difference}")
    for reason in sorted(
        {file.read_text(encoding="utf-8") for side in (old, new) for file in side.glob(f"*/{SKIPPED}")}
    ):
        _say(f"skipped: {reason.strip()}")
    files = sum(len(files_of(old / part) | files_of(new / part)) for part in parts)
    _say(f"{found} of {files} files differ")
    return 1 if found else 0


def _parts_of(outputs: Path) -> list[str]:
    return [part for part in PARTS if (outputs / part).is_dir()]


def _checked(folder: Path) -> Path:
    if not _parts_of(folder):
        raise Problem(f"{folder} does not contain outputs; `python -m tools.same write FOLDER` makes such a folder.")
    return folder


@contextmanager
def _outputs(revision: str | None, parts: Sequence[str]) -> Iterator[Path]:
    """Make the outputs of a revision, or of the current files, in a temporary folder."""
    name = _commit(revision)[:10] if revision else "current code"
    with tempfile.TemporaryDirectory(prefix=PREFIX) as scratch:
        place = Place(Path(scratch))
        if revision:
            unpack(revision, place.tree)
        else:
            _copy(place.tree)
        start = time.monotonic()
        make(place, parts, lambda part: _say(f"{name}, {time.monotonic() - start:.0f} s: {part}"))
        yield place.outputs


def _commit(revision: str) -> str:
    named = BASELINE if revision == "baseline" else revision
    return _git("rev-parse", "--verify", f"{named}^{{commit}}").strip()


def unpack(revision: str, folder: Path) -> None:
    """Write the files of a revision into a new folder."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", _commit(revision)], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive, check=True)


def _copy(folder: Path) -> None:
    """Copy the current files of the project, so that edits during the comparison have no effect."""
    for name in _listed():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def _listed() -> list[str]:
    if (ROOT / ".git").exists():
        listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "-z")
        return [name for name in listed.split("\0") if name]
    # In an unpacked sdist, these are the files that the sdist contains.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    below = (path for name in included for path in (ROOT / name[1:], *(ROOT / name[1:]).rglob("*")))
    return ["pyproject.toml", *(str(path.relative_to(ROOT)) for path in below if path.parent.name != "__pycache__")]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
