"""Compare two folders of outputs; this module lists everything that may differ between two runs of the same code."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

# --- The only differences that are allowed. ---

UUID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])")
"""The id of a record for Every Eval Ever. It depends on the time of the calls and is also part of a file name."""
SUBSTITUTIONS: Final = tuple(
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        # The temporary folder that contains the copied code, the tiny model, and the outputs while they are made.
        (r"[^\s\"'`(=:+]*/skillmix-same-[^/\s\"'`)]+", "SCRATCH"),
        # The path of the interpreter, in commands that a command suggests.
        (r"[^\s\"'`]*/bin/python[\d.]* -m skillmix", "python -m skillmix"),
        # The port of a stub provider, and the tag and the times of a batch.
        (r"\b127\.0\.0\.1:\d+", "STUB"),
        (r"\bskx[0-9a-f]{16}\b", "TAG"),
        # The key that states which part of a conversation a batched call is; earlier versions called this key "wave".
        (r'"wave": ', '"part": '),
        (r"(since|\"since\":) \"?\d{4}-\d\d-\d\d \d\d:\d\d", r"\1 TIME"),
        (UUID.pattern, "UUID"),
        (r'("evaluation_id": "[^"]*/)\d{10}"', r'\1TIME"'),
        (r'"(retrieved|evaluation)_timestamp": "[\d.]+"', r'"\1_timestamp": "TIME"'),
        # The checksum of a file that contains such times; the file itself is compared.
        (r'"checksum": "[0-9a-f]{64}"', '"checksum": "SHA-256"'),
        # The size of a report, because a report contains seconds.
        (r'"bytes": \d+', '"bytes": 0'),
        # Times and dates in the form of journals, exports and manifests.
        (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)", "TIME"),
        # The time of a run's calls, in the form of reports.
        (r"\b\d{1,2} [A-Z][a-z]+ \d{4}, \d\d:\d\d( to ([^<]*, )?\d\d:\d\d)? UTC", "TIME"),
        # The first line of a step, whose position and number of calls depend on a timer.
        (r"^\S+: begins\b.*\n", ""),
        # The lines that a step prints every 15 seconds.
        (r"^\S+: [\d,]+( of [a-z ]*[\d,]+)? calls(, [^;\n]*)?; the run: .*\n", ""),
        # The share of a run and the time left after a step, which are weighted with measured seconds.
        (r"; the run: .*", "; the run: SHARE"),
        # The time left of a dataset step.
        (r", about \d+ (s|min|h \d+ min) left", ", about TIME left"),
        # The time that a run took.
        (r" found, .* of CPU time", " found, TIME of CPU time"),
        # The time of a step, on standard error and in `status`. Older versions also print the parts of this time.
        (r"^\S+: (less than )?([\d.]+ (s|min)|\d+ h \d+ min)(: [^\n]*|; the [CG]PU worked in [^\n]*)?\n", ""),
        # The time of each step in a report.
        (r"<section id=\"time\">[\s\S]*?</table>", "SECONDS"),
        # The pace of training on standard error.
        (r"\b[\d,]+ tokens/s", "PACE tokens/s"),
        # Measured seconds and paces in training.jsonl and in the records of a training run.
        (r'"(seconds|seconds_left|tokens_per_second|utilisation)": [\d.e+-]+', r'"\1": 0'),
        # Versions of Python and of packages, in manifests and in the files of models.
        (r'"(skillmix|python|torch|transformers_version|peft_version)": "\d[^"]*"', r'"\1": "VERSION"'),
        (r"^skillmix \d\S*$", "skillmix VERSION"),
    )
)
LEFT_OUT: Final = (
    "seconds.json",  # from older versions: the time of each step by activity
    "where-the-time-went.*",  # the time of each step in a report
    "begun.json",  # from older versions: used to find a training run that stopped
)
RESULTS_OF_A_RUN: Final = ("texts.*", "votes.*", "calls.*", "frequencies.json", "exclude.yaml")
"""The files in a run's folder that are compared directly, because they contain results.

The other files store the run itself. They are compared through the output of commands about the run, which is in
`printed/run-NAME-*`.
"""

# --- The comparison. ---


@dataclass(frozen=True, slots=True)
class Difference:
    """A file that differs, and the place of its first difference."""

    file: str
    about: str

    def __str__(self) -> str:
        return f"{self.file}: {self.about}"


def differences(old: Path, new: Path) -> Iterator[Difference]:
    """Compare two folders, file by file, in the order of their names."""
    files_old, files_new = files_of(old), files_of(new)
    for name in sorted(files_old | files_new):
        if name not in files_new:
            yield Difference(name, "only the old outputs have it")
        elif name not in files_old:
            yield Difference(name, "only the new outputs have it")
        else:
            found = _difference(old / name, new / name)
            if found is not None:
                yield Difference(name, found)


def files_of(folder: Path) -> set[str]:
    """Return the names of the files that are compared."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and _counts(path.relative_to(folder).parts)
    }


def _counts(parts: tuple[str, ...]) -> bool:
    if any(fnmatch(parts[-1], pattern) for pattern in LEFT_OUT):
        return False
    below = parts[parts.index("runs") + 2 :] if "runs" in parts else ()
    if len(below) == 1:
        return any(fnmatch(below[0], pattern) for pattern in RESULTS_OF_A_RUN)
    return below[:1] not in (("journal",), ("people",), ("before-migration",))


def _difference(old: Path, new: Path) -> str | None:
    if old.read_bytes() == new.read_bytes():
        return None
    before, after = _text(old), _text(new)
    if before is None or after is None:
        return f"{_digest(old)} → {_digest(new)} (SHA-256)"
    if before == after:
        return None
    if old.suffix == ".json":
        return _in_json(before, after) or _in_lines(before, after, of_json=False)
    return _in_lines(before, after, of_json=old.suffix == ".jsonl")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _text(path: Path) -> str | None:
    """Return the normalized content of a text file; None if the file contains no text."""
    try:
        return normalised(path.read_bytes().decode())
    except UnicodeDecodeError:
        return None


def normalised(text: str) -> str:
    """Replace everything that may differ."""
    for pattern, replacement in SUBSTITUTIONS:
        text = pattern.sub(replacement, text)
    return text


def _in_lines(before: str, after: str, *, of_json: bool) -> str:
    """Describe the first difference between two texts."""
    lines, others = before.split("\n"), after.split("\n")
    number = next((n for n, pair in enumerate(zip(lines, others, strict=False)) if pair[0] != pair[1]), None)
    if number is None:
        shorter, longer = ("old", "new") if len(lines) < len(others) else ("new", "old")
        return f"the {shorter} one ends after line {min(len(lines), len(others))}, the {longer} one goes on"
    line, other = lines[number], others[number]
    place = _in_json(line, other) if of_json else None
    return f"line {number + 1}: {place or _both(line, other)}"


def _in_json(before: str, after: str) -> str | None:
    """Describe the first difference between two JSON values and count the others; None if a text is not JSON."""
    try:
        found = list(_paths(json.loads(before), json.loads(after), "$"))
    except ValueError:
        return None
    if not found:
        return None  # the values are the same and only their notation differs
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{found[0]}{more}"


def _paths(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            here = f"{path}.{key}"
            if key not in new or key not in old:
                yield f"{here}: only the {'old' if key in old else 'new'} one has it"
            else:
                yield from _paths(old[key], new[key], here)
    elif isinstance(old, list) and isinstance(new, list):
        for number, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from _paths(one, other, f"{path}[{number}]")
        if len(old) != len(new):
            yield f"{path}: {len(old)} → {len(new)} values"
    elif type(old) is not type(new) or old != new:
        yield f"{path}: {_both(json.dumps(old, ensure_ascii=False), json.dumps(new, ensure_ascii=False))}"


def _both(old: str, new: str) -> str:
    """Show two texts around the first character in which they differ."""
    shared = next(
        (n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new))
    )
    begin = max(0, shared - 40)
    return " → ".join(
        f"{'…' * (begin > 0)}{text[begin : shared + 60]}{'…' * (len(text) > shared + 60)}" for text in (old, new)
    )
