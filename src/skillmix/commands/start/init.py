"""`skillmix init`: write a commented experiment file to start from."""

import argparse
import json
import re
import sys
from pathlib import Path
from shlex import quote
from typing import Final

from skillmix.commands.shared_options import Commands, add_command
from skillmix.commands.streams import program
from skillmix.errors import UserError

PURPOSES: Final = {
    "evaluate": "evaluate my model",
    "data": "make training data",
    "tune": "fine-tune a model and test it",
}
_MODEL: Final = re.compile(r'(?<=\{model: ")[^"]+(?=")')


def add_parsers(commands: Commands) -> None:
    """Add the command `init`."""
    parser = add_command(commands, "init", init, has_json=False)
    about = "; ".join(f"{name}: {words}" for name, words in PURPOSES.items())
    parser.add_argument("purpose", choices=tuple(PURPOSES), metavar="PURPOSE", help=about)
    parser.add_argument("--model", metavar="SPEC", help="the model, such as openai:NAME@http://localhost:8000/v1")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: PURPOSE.yaml; never overwritten")


def init(options: argparse.Namespace) -> int:
    """Write a commented experiment file to start from: evaluate a model, make data, or fine-tune."""
    file: Path = options.output or Path(f"{options.purpose}.yaml")
    shown = quote(str(file)) if str(file).isprintable() else "FILE"
    text = starter(options.purpose, model=options.model)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text.replace("FILE", shown))
    except FileExistsError:
        raise UserError(f"{file} exists, and init overwrites nothing.", hint="Choose another file: --output.") from None
    print(file)
    print(f"next: read the file, then: {program()} run {shown} --dry-run", file=sys.stderr)
    return 0


def starter(purpose: str, *, model: str | None = None) -> str:
    """The text of a starting file, with a model in the place of the first student's."""
    from skillmix.catalog.files import SHIPPED
    from skillmix.models.specs import check_spec, uses_code

    text = (SHIPPED / "starters" / f"{purpose}.yaml").read_text(encoding="utf-8")
    if model is None:
        return text
    check_spec(model)
    if uses_code(model):
        raise UserError(f"--model {model} grades and writes nothing.", hint="Give a model that writes texts.")
    quoted = json.dumps(model, ensure_ascii=False)[1:-1]
    before, students, after = text.partition("\nstudents:")
    return before + students + _MODEL.sub(lambda _: quoted, after, count=1)
