"""Commands for getting started: `init`, `schema`, `completion`, `models` and `prices`."""

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Final

from skillmix.commands import shared as cli
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
"""For each shell, how to complete an experiment or a run: from files, shipped experiments (@) and folders in runs/.

Each value is the completion expression, and the code of the function that it calls, if any.
"""


@cli.command(
    "completion",
    cli.option("shell", "shell to write the script for", choices=("bash", "zsh", "fish")),
    has_json=False,
)
def completion(options: argparse.Namespace) -> int:
    """Print a completion script for bash, zsh or fish.

    bash: add source <(skillmix completion bash) to ~/.bashrc. zsh: run skillmix completion zsh > _skillmix in a
    directory of $fpath. fish: run skillmix completion fish > ~/.config/fish/completions/skillmix.fish.
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


@cli.command(
    "init",
    cli.option(
        "purpose",
        "; ".join(f"{name}: {words}" for name, words in PURPOSES.items()),
        choices=tuple(PURPOSES),
        metavar="|".join(PURPOSES),
    ),
    cli.option("--model", "the model, such as openai:NAME@http://localhost:8000/v1", metavar="SPEC"),
    cli.option("--output", "new file (default: evaluate.yaml, data.yaml or tune.yaml)", type=Path, metavar="FILE"),
    has_json=False,
)
def init(options: argparse.Namespace) -> int:
    """Write a commented experiment file to edit: evaluate a model, make training data, or fine-tune a model."""
    file: Path = options.output or Path(f"{options.purpose}.yaml")
    shown = quote(str(file)) if str(file).isprintable() else "FILE"
    text = starter(options.purpose, model=options.model)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text.replace("FILE", shown))
    except FileExistsError:
        raise UserError(f"{file} already exists.", hint="Choose another file with --output.") from None
    print(file)
    LOG.info(f"next: read the file, then run: {cli.program()} run {shown} --dry-run")
    return 0


@cli.command("schema", has_json=False)
def schema(_: argparse.Namespace) -> int:
    """Print the JSON Schema of experiment files, with which editors complete and check keys."""
    from skillmix.experiment.experiment import Experiment

    return cli.print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Experiment.model_json_schema()})


def starter(purpose: str, *, model: str | None = None) -> str:
    """Return the starter file for a purpose; `model` replaces the model of its first student."""
    from skillmix.files import SHIPPED
    from skillmix.models.specs import check_spec, uses_code

    text = (SHIPPED / "starters" / f"{purpose}.yaml").read_text(encoding="utf-8")
    if model is None:
        return text
    check_spec(model)
    if uses_code(model):
        raise UserError(f"{model} is a grader and writes no texts.", hint="Choose a model that writes with --model.")
    quoted = json.dumps(model, ensure_ascii=False)[1:-1]
    before, students, after = text.partition("\nstudents:")
    return before + students + _MODEL.sub(lambda _: quoted, after, count=1)


@cli.command("models", cli.flag("--fetch", "download the bundled models into the cache first"))
def models(options: argparse.Namespace) -> int:
    """List the forms of model strings and the bundled models."""
    from skillmix.models.bundled import SOURCES, bundled_model, bundled_models
    from skillmix.models.specs import provider_forms

    for name in SOURCES if options.fetch else ():
        bundled_model(name)
    providers, bundled = provider_forms(), bundled_models()
    if options.json:
        return cli.print_json({"providers": providers, "bundled": [asdict(model) for model in bundled]})
    for provider, about in providers.items():
        print(wrapped(f"{provider:<10} {about}", indent=11))
    for model in bundled:
        where = f"in {model.folder}" if model.folder else f"downloaded at first use ({model.download_mb} MB)"
        facts = f"{model.spec}: {model.about}, {model.licence}, from {model.package}; {where}"
        print(f"\n{wrapped(facts, indent=2)}")
    return 0


_LONGEST_LIST: Final = 32 << 20
_LIST_TIMEOUT: Final = 60.0


@cli.command(
    "prices",
    cli.option("specs", "models to add from the price list", nargs="*", metavar="SPEC"),
    cli.PRICES,
    cli.option(
        "--from", "price list of LiteLLM or OpenRouter: a JSON file or https URL", dest="source", metavar="LIST"
    ),
    cli.option("--output", "write the refreshed prices to this file", type=Path, metavar="FILE"),
)
def prices(options: argparse.Namespace) -> int:
    """Print the prices of models, or refresh them with `--from LIST --output FILE`."""
    from skillmix.experiment.costs import load_prices, price_warnings, prices_as_yaml, refreshed_prices

    known = load_prices(options.prices)
    missing: list[str] = []
    if options.specs and not options.source:
        raise UserError("New models need a price list.", hint="Give one with --from LIST.")
    if options.source:
        content = _price_list(options.source)
        known, missing = refreshed_prices(known, options.specs, content, source=options.source)
        for spec in missing:
            kept = "; the old price is kept" if spec in known else ""
            LOG.warning(f"warning: {options.source} has no price for {spec}{kept}")
    shown = prices_as_yaml(known)
    if options.output:
        new = options.output.with_name(f"{options.output.name}.new")
        new.write_text(shown, encoding="utf-8")
        new.replace(options.output)
        LOG.info(f"next: add --prices {options.output} to your commands")
    elif options.json:
        return cli.print_json({spec: asdict(price) for spec, price in known.items()})
    else:
        print(shown, end="")
    for warning in price_warnings(known):
        LOG.warning(f"warning: {warning}")
    return 0 if not missing else 1


def _price_list(source: str) -> str:
    """Read a price list from a file or an https URL."""
    from skillmix.files import read_text

    if not source.startswith("https://"):
        return read_text(Path(source))
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(source, timeout=_LIST_TIMEOUT) as response:
            content: bytes = response.read(_LONGEST_LIST + 1)
    except (URLError, OSError, ValueError) as error:
        hint = "Check the URL, or download the list yourself and give the file."
        raise UserError(f"{source} cannot be downloaded: {error}.", hint=hint) from None
    if len(content) > _LONGEST_LIST:
        raise UserError(f"{source} exceeds {_LONGEST_LIST >> 20} MiB.", hint="Check the URL.")
    return content.decode("utf-8", "replace")
