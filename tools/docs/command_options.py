"""Write the options of every command, at the end of docs/commands.md, from the parsers of the command line."""

import argparse
import re
from collections.abc import Iterator
from typing import Final

from skillmix.commands import parser_of_all
from tools.docs.markdown import table

_OPTION: Final = re.compile(r"(?<![\w`-])(--[a-z][a-z-]*)")


def part() -> str:
    """Return a section for each command."""
    parts = ["## Options of every command"]
    for name, parser in commands().items():
        parts += [f"### {name}", parser.description or "", f"```text\n{usage(name, parser)}\n```"]
        if rows := list(_rows(parser)):
            parts.append(table(["argument", "meaning"], rows))
    return "\n\n".join(parts) + "\n"


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, by name."""
    (action,) = (a for a in parser_of_all()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def usage(name: str, parser: argparse.ArgumentParser) -> str:
    """Return the usage line of a command; unlike argparse's usage, it is the same in every version of Python."""
    needed = [f"{_named(action)}" for action in parser._actions if action.option_strings and action.required]
    places = [_place(action) for action in parser._actions if not action.option_strings]
    return " ".join(["skillmix", name, *places, *needed, "[options]"])


def _place(action: argparse.Action) -> str:
    word = str(action.metavar or action.dest)
    several = word if word.endswith("…") else f"{word} …"
    return {"?": f"[{word}]", "+": several, "*": f"[{several}]"}.get(str(action.nargs), word)


def _rows(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    """Yield rows for positional arguments, then options, then `--json`; options that all commands share are omitted."""
    actions = [action for action in parser._actions if action.dest not in ("help", "quiet")]
    for action in sorted(actions, key=lambda one: (bool(one.option_strings), "--json" in one.option_strings)):
        if action.option_strings:
            yield [f"`{_named(action)}`", _meaning(action, parser)]
        elif action.help:
            yield [f"`{_place(action)}`", _meaning(action, parser)]


def _named(action: argparse.Action) -> str:
    word = action.option_strings[-1]
    if action.nargs == 0:
        return word
    value = str(action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper()))
    return f"{word} {value}" + (" …" if action.nargs in ("+", "*") else "")


def _meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = " ".join(parser._get_formatter()._expand_help(action).split()) if action.help else ""
    text = _OPTION.sub(r"`\1`", text)
    if action.required and action.option_strings:
        return f"{text}; required" if text else "required"
    return text or ("–" if action.default in (None, False) else f"default: {action.default}")
