"""Run skillmix commands one after another in this process, each with files for its streams.

The worker reads the commands as JSON from standard input. Running them in one process saves the start-up time of a
process for each command. The worker calls `python -m skillmix` and nothing inside the package, so it does not depend on
the names of modules.
"""

import json
import runpy
import sys
import traceback
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path


@dataclass(frozen=True)
class Streams:
    """The files for the output of a command."""

    folder: Path
    name: str
    is_json: bool

    @property
    def stdout(self) -> Path:
        """Return the file for standard output."""
        return self.folder / f"{self.name}.{'json' if self.is_json else 'txt'}"

    @property
    def stderr(self) -> Path:
        """Return the file for the exit status and standard error."""
        return self.folder / f"{self.name}.stderr.txt"


def run(words: list[str], text: str, streams: Streams) -> None:
    """Run one command; a failure becomes part of the output."""
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    with streams.stdout.open("w", encoding="utf-8") as out, streams.stderr.open("w", encoding="utf-8") as err:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = ["", *words], TextIOWrapper(BytesIO(text.encode())), out, err
        try:
            status = _status(words)
        finally:
            sys.argv, sys.stdin, sys.stdout, sys.stderr = before
    said = streams.stderr.read_text(encoding="utf-8")
    streams.stderr.write_text(f"exit status {status}\n{said}", encoding="utf-8")
    if not said and status == 0:
        streams.stderr.unlink()
    if not streams.stdout.stat().st_size:
        streams.stdout.unlink()


def _status(words: list[str]) -> object:
    try:
        runpy.run_module("skillmix", run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        return stop.code or 0
    except Exception:  # noqa: BLE001 - any failure of a revision is compared
        traceback.print_exc()
    return "of a crash"


def main() -> None:
    """Run the commands that standard input lists as [name, words, input]."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, words, text in json.load(sys.stdin):
        run(words, text, Streams(folder, name, is_json="--json" in words))


if __name__ == "__main__":
    main()
