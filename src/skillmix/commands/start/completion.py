"""`skillmix completion`: a script that completes commands and options in a shell, made from the parsers.

The scripts hold all words themselves, so that a completion starts no Python.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from skillmix.commands.shared_options import Commands, add_command

Shell = Literal["bash", "zsh", "fish"]
Kind = Literal["none", "value", "words", "file", "run", "experiment"]
"""What follows an option or stands for an operand: nothing, any value, words of a list, or a name that is found."""


@dataclass(frozen=True, slots=True)
class ShownOption:
    """An option of a command."""

    names: tuple[str, ...]
    about: str
    kind: Kind
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownCommand:
    """A command with its options and its operands."""

    name: str
    about: str
    options: tuple[ShownOption, ...]
    operands: tuple[Kind, ...]
    words: tuple[str, ...] = ()
    """What an operand with a list of words may be."""


def add_parsers(commands: Commands) -> None:
    """Add the command `completion`."""
    parser = add_command(commands, "completion", completion, has_json=False)
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell that the script is for")
    # The other parsers are all there by the time that the command runs.
    parser.set_defaults(all_commands=commands)


def completion(options: argparse.Namespace) -> int:
    """Print a script that completes commands, options and runs in bash, zsh or fish.

    bash: source <(skillmix completion bash), also in ~/.bashrc. fish: skillmix completion fish >
    ~/.config/fish/completions/skillmix.fish, once. zsh: skillmix completion zsh > _skillmix, in a folder of $fpath.
    """
    print(SCRIPTS[options.shell](shown_commands(options.all_commands)))
    return 0


def shown_commands(commands: Commands) -> list[ShownCommand]:
    """Every command, as its parser has it."""
    about = {action.dest: action.help or "" for action in commands._choices_actions}
    return [_shown(name, about.get(name, ""), parser) for name, parser in commands.choices.items()]


def _shown(name: str, about: str, parser: argparse.ArgumentParser) -> ShownCommand:
    named = [action for action in parser._actions if action.option_strings]
    operands = [action for action in parser._actions if not action.option_strings]
    return ShownCommand(
        name,
        _one_line(about),
        tuple(ShownOption(tuple(a.option_strings), _one_line(a.help or ""), _kind(a), _words(a)) for a in named),
        tuple(map(_kind, operands)),
        tuple(word for action in operands for word in _words(action)),
    )


def _kind(action: argparse.Action) -> Kind:
    if action.choices:
        return "words"
    if action.nargs == 0:
        return "none"
    metavar = str(action.metavar or "")
    if "EXPERIMENT" in metavar:
        return "experiment"
    if action.dest in ("run", "runs") and not action.option_strings:
        return "run"
    is_file = action.type is Path or metavar in ("DIR", "FILE", "PATH") or (action.dest == "name" and metavar == "NAME")
    return "file" if is_file else "value"


def _words(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices)) if action.choices else ()


def _one_line(text: str) -> str:
    """A text that is safe between single quotes of every shell."""
    return " ".join(text.replace("%%", "%").split()).replace("'", "’").replace("\\", "/")


def _bash(commands: list[ShownCommand]) -> str:
    names = " ".join(command.name for command in commands)
    cases = "\n".join(_bash_case(command) for command in commands)
    return _BASH.replace("@NAMES@", names).replace("@CASES@", cases)


def _bash_case(command: ShownCommand) -> str:
    lines = [f"    {command.name})"]
    values = [option for option in command.options if option.kind != "none"]
    if values:
        lines.append('      case "$before" in')
        for option in values:
            lines.append(f"        {'|'.join(option.names)}) {_BASH_WORDS[option.kind](option.words)}; return ;;")
        lines.append("      esac")
    options = " ".join(name for option in command.options for name in option.names)
    lines.append(
        f"      if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '{options}' -- \"$current\")); return; fi"
    )
    kinds = dict.fromkeys(kind for kind in command.operands if kind not in ("none", "value"))
    lines += [f"      {_BASH_WORDS[kind](command.words)}" for kind in kinds]
    return "\n".join([*lines, "      ;;"])


_BASH_WORDS: Final[dict[Kind, Callable[[tuple[str, ...]], str]]] = {
    "value": lambda words: ":",
    "words": lambda words: f"COMPREPLY+=($(compgen -W '{' '.join(words)}' -- \"$current\"))",
    "file": lambda words: "_skillmix_files",
    "run": lambda words: "_skillmix_runs",
    "experiment": lambda words: "_skillmix_experiments",
}
_BASH: Final = r"""# bash completion for skillmix, written by `skillmix completion bash`
_skillmix_files() { compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$current")); }
_skillmix_runs() { COMPREPLY+=($(compgen -W "$(ls runs 2>/dev/null)" -- "$current")); }
_skillmix_experiments() { _skillmix_files; COMPREPLY+=($(compgen -W '@EXPERIMENTS@' -- "$current")); }
_skillmix() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} IFS=$' \t\n'
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W '@NAMES@ --help --version' -- "$current")); return; fi
  case ${COMP_WORDS[1]} in
@CASES@
  esac
}
complete -F _skillmix skillmix"""


def _zsh(commands: list[ShownCommand]) -> str:
    names = "\n".join(f"    '{c.name}:{_zsh_words(c.about)}'" for c in commands)
    cases = "\n".join(_zsh_case(command) for command in commands)
    return _ZSH.replace("@NAMES@", names).replace("@CASES@", cases)


def _zsh_case(command: ShownCommand) -> str:
    lines = [f"    {command.name})", "      _arguments -s \\"]
    for option in command.options:
        for name in option.names:
            about = _zsh_words(option.about)
            value = "" if option.kind == "none" else f":value:{_zsh_action(option.kind, option.words)}"
            lines.append(f"        '*{name}[{about}]{value}' \\")
    operand = next((kind for kind in command.operands if kind != "none"), None)
    lines.append(f"        '*:argument:{_zsh_action(operand, command.words) if operand else ''}'")
    return "\n".join([*lines, "      ;;"])


def _zsh_words(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "[]:" else sign for sign in text)


def _zsh_action(kind: Kind, words: tuple[str, ...]) -> str:
    match kind:
        case "words":
            return f"({' '.join(words)})"
        case "file":
            return "_files"
        case "run":
            return "_skillmix_runs"
        case "experiment":
            return "_skillmix_experiments"
    return ""


_ZSH: Final = r"""#compdef skillmix
# zsh completion for skillmix, written by `skillmix completion zsh`
_skillmix_runs() { local -a found; found=(runs/*(N/:t)); compadd -a found }
_skillmix_experiments() { _files -g '*.y(a|)ml'; compadd -- @EXPERIMENTS@ }
_skillmix() {
  local -a commands
  commands=(
@NAMES@
  )
  if (( CURRENT == 2 )); then
    _describe 'command' commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
@CASES@
  esac
}
if [ "$funcstack[1]" = "_skillmix" ]; then _skillmix "$@"; else compdef _skillmix skillmix; fi"""


def _fish(commands: list[ShownCommand]) -> str:
    lines = [
        "# fish completion for skillmix, written by `skillmix completion fish`",
        "complete -c skillmix -f",
        "complete -c skillmix -n __fish_use_subcommand -l version -d 'print the version'",
    ]
    return "\n".join([*lines, *(line for command in commands for line in _fish_lines(command))])


def _fish_lines(command: ShownCommand) -> Iterator[str]:
    yield f"complete -c skillmix -n __fish_use_subcommand -a {command.name} -d '{command.about}'"
    begin = f"complete -c skillmix -n '__fish_seen_subcommand_from {command.name}'"
    for option in command.options:
        names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
        yield f"{begin} {names} -d '{option.about}'{_FISH_VALUES[option.kind](option.words)}"
    for kind in dict.fromkeys(kind for kind in command.operands if kind not in ("none", "value")):
        yield f"{begin}{_FISH_OPERANDS[kind](command.words)}"


_FISH_VALUES: Final[dict[Kind, Callable[[tuple[str, ...]], str]]] = {
    "none": lambda words: "",
    "value": lambda words: " -x",
    "words": lambda words: f" -x -a '{' '.join(words)}'",
    "file": lambda words: " -r -F",
    "run": lambda words: " -x -a '(ls runs 2>/dev/null)'",
    "experiment": lambda words: " -r -F",
}
_FISH_OPERANDS: Final[dict[Kind, Callable[[tuple[str, ...]], str]]] = {
    "words": lambda words: f" -a '{' '.join(words)}'",
    "file": lambda words: " -F",
    "run": lambda words: " -a '(ls runs 2>/dev/null)'",
    "experiment": lambda words: " -F -a '@EXPERIMENTS@'",
}


def _with_experiments(write: Callable[[list[ShownCommand]], str]) -> Callable[[list[ShownCommand]], str]:
    def written(commands: list[ShownCommand]) -> str:
        from skillmix.catalog.shipped import shipped_experiments

        return write(commands).replace("@EXPERIMENTS@", " ".join(shipped_experiments()))

    return written


SCRIPTS: Final[dict[str, Callable[[list[ShownCommand]], str]]] = {
    "bash": _with_experiments(_bash),
    "zsh": _with_experiments(_zsh),
    "fish": _with_experiments(_fish),
}
