"""Commands to begin with: `init`, `schema` and `completion` write what an editor or a shell needs; `models` lists."""

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Final

from skillmix.commands.shared import command, option, print_json, program
from skillmix.errors import LOG, UserError
from skillmix.render import wrapped

PURPOSES: Final = {
    "evaluate": "evaluate my model",
    "data": "make training data",
    "tune": "fine-tune a model and test it",
}
_MODEL: Final = re.compile(r'(?<=\{model: ")[^"]+(?=")')


_NAMES: Final = {
    "bash": (
        "_skillmix_names",
        "_skillmix_names() { compgen -f -- $1; compgen -W '@'\" $(ls runs 2>/dev/null)\" -- $1; }",
    ),
    "zsh": ("_skillmix_names", '_skillmix_names() { _files; compadd -- @ ${(f)"$(ls runs 2>/dev/null)"} }'),
    "fish": ("(__fish_complete_path (commandline -ct)) @ (ls runs 2>/dev/null)", ""),
}
"""By shell, how experiments and runs complete: files, the names of shipped experiments (@) and the folders of runs."""


@command(
    "completion",
    option("shell", choices=("bash", "zsh", "fish"), help="the shell that the script is for"),
    has_json=False,
)
def completion(options: argparse.Namespace) -> int:
    """Print a script that completes commands, options and runs in bash, zsh or fish.

    bash: source <(skillmix completion bash), also in ~/.bashrc. fish: skillmix completion fish >
    ~/.config/fish/completions/skillmix.fish, once. zsh: skillmix completion zsh > _skillmix, in a folder of $fpath.
    """
    import shtab

    from skillmix.files import shipped_experiments

    parser: argparse.ArgumentParser = options.whole
    shipped = " ".join(shipped_experiments())
    calls = {shell: call.replace("@", shipped) for shell, (call, _) in _NAMES.items()}
    preamble = {shell: code.replace("@", shipped) for shell, (_, code) in _NAMES.items()}
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for action in (action for own in commands.choices.values() for action in own._actions):
        metavar = str(action.metavar or "")
        if "RUN" in metavar or "EXPERIMENT" in metavar:
            action.complete = {**calls, "preamble": preamble}
        elif action.type is Path or metavar in ("DIR", "FILE", "PATH"):
            action.complete = shtab.FILE
    print(shtab.complete(parser, shell=options.shell))
    return 0


@command(
    "init",
    option(
        "purpose",
        choices=tuple(PURPOSES),
        metavar="|".join(PURPOSES),
        help="; ".join(f"{name}: {words}" for name, words in PURPOSES.items()),
    ),
    option("--model", metavar="SPEC", help="the model, such as openai:NAME@http://localhost:8000/v1"),
    option("--output", type=Path, metavar="FILE", help="default: PURPOSE.yaml; never overwritten"),
    has_json=False,
)
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
    LOG.info(f"next: read the file, then: {program()} run {shown} --dry-run")
    return 0


@command("schema", has_json=False)
def schema(_: argparse.Namespace) -> int:
    """Print the JSON Schema of an experiment file, with which editors complete and check its keys."""
    from skillmix.experiment.experiment import Experiment

    return print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Experiment.model_json_schema()})


def starter(purpose: str, *, model: str | None = None) -> str:
    """The text of a starting file, with a model in the place of the first student's."""
    from skillmix.files import SHIPPED
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


@command("models", option("--fetch", action="store_true", help="download the bundled models into the cache"))
def models(options: argparse.Namespace) -> int:
    """List the forms of model specs and the bundled models."""
    from skillmix.models.bundled import SOURCES, bundled_model, bundled_models
    from skillmix.models.specs import provider_forms

    for name in SOURCES if options.fetch else ():
        bundled_model(name)
    providers, bundled = provider_forms(), bundled_models()
    if options.json:
        return print_json({"providers": providers, "bundled": [asdict(model) for model in bundled]})
    for provider, about in providers.items():
        print(wrapped(f"{provider:<10} {about}", indent=11))
    for model in bundled:
        where = f"in {model.folder}" if model.folder else f"fetched at first use ({model.download_mb} MB)"
        facts = f"{model.spec}: {model.about}, {model.licence}, from {model.package}; {where}"
        print(f"\n{wrapped(facts, indent=2)}")
    return 0
