"""Run the trusted `checkers.py` of a catalogue and take its checkers."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from traceback import extract_tb
from types import ModuleType
from typing import Any

from skillmix.catalog.names import fold_name
from skillmix.catalog.own_code import OwnCode, require_trust
from skillmix.checkers.passage import Checker, Passage, Span
from skillmix.errors import UserError, faults_error
from skillmix.render import did_you_mean


@dataclass(frozen=True)
class OwnCheckers:
    """What a `checkers.py` defines, by folded name of the skill."""

    checkers: Mapping[str, Checker]
    looks_for: Mapping[str, str]


@lru_cache(maxsize=16)
def own_checkers(code: OwnCode) -> OwnCheckers:
    """Run trusted code once, and check everything that it defines."""
    require_trust(code)
    module = ModuleType(f"skillmix_checkers_{code.hash}")
    module.__file__ = code.path
    sys.modules[module.__name__] = module  # dataclasses of the code look their module up
    try:
        exec(compile(code.source, code.path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the code raises is a fault of that file
        raise UserError(f"{code.path} cannot be loaded: {_described(error, code)}.", hint="Correct the file.") from None
    found: object = getattr(module, "CHECKERS", None)
    looks_for: object = getattr(module, "LOOKS_FOR", {})
    faults = [*_faults("CHECKERS", found, callable, "a function", code), *_words_faults(looks_for, code)]
    if faults or not isinstance(found, dict) or not isinstance(looks_for, dict):
        raise faults_error(code.path, faults, hint='Write CHECKERS = {"name of the skill": function}.')
    return OwnCheckers(
        {fold_name(name): _guarded(name, function, code) for name, function in found.items()},
        {fold_name(name): words for name, words in looks_for.items()},
    )


def _faults(table: str, found: object, is_right: Callable[[object], bool], expected: str, code: OwnCode) -> list[str]:
    if not isinstance(found, dict) or (table == "CHECKERS" and not found):
        return [f"{table} is not a dict with an entry for each skill that the code checks"]
    known = {fold_name(skill) for skill in code.skills}
    faults = []
    for name, value in found.items():
        if not isinstance(name, str) or fold_name(name) not in known:
            guess = did_you_mean(str(name), code.skills)
            faults.append(f"{table}: the catalogue has no skill {name!r}. {guess}".rstrip().removesuffix("."))
        elif not is_right(value):
            faults.append(f"{table}: the value of {name!r} is not {expected}")
    return faults


def _words_faults(found: object, code: OwnCode) -> list[str]:
    return _faults("LOOKS_FOR", found, lambda value: isinstance(value, str), "a text", code)


def _guarded(skill: str, function: Callable[[Passage], Any], code: OwnCode) -> Checker:
    """The function, whose faults are errors with its name: a fault must not look like a text without the skill."""

    def check(passage: Passage) -> Span | None:
        try:
            found = function(passage)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            raise UserError(
                f"The checker of {skill!r} failed on a text of {len(passage.text)} characters: "
                f"{_described(error, code)}.",
                hint=f"Correct {code.path}.",
            ) from None
        match found:
            case None:
                return None
            case (int(start), int(end)) if 0 <= start < end <= len(passage.text):
                return Span(start, end)
        raise UserError(
            f"The checker of {skill!r} returned {type(found).__name__} {str(found)[:80]!r}.",
            hint="It must return None, or a Span(start, end) of characters inside the text.",
        )

    return check


def _described(error: BaseException, code: OwnCode) -> str:
    """An error in one line, with the line of the code where it arose."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == code.path]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {str(error)[:200]}{where}"
