"""`skillmix models`: the forms of model specs, and the bundled models."""

import argparse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from skillmix.commands.shared_options import Commands, add_command
from skillmix.commands.streams import print_json
from skillmix.render import wrapped

if TYPE_CHECKING:
    from skillmix.models.bundled import BundledModel


def add_parsers(commands: Commands) -> None:
    """Add the command `models`."""
    parser = add_command(commands, "models", models)
    parser.add_argument("--fetch", action="store_true", help="download the bundled models into the cache")


def models(options: argparse.Namespace) -> int:
    """List the forms of model specs and the bundled models."""
    listed = list_models(fetch=options.fetch)
    if options.json:
        return print_json(listed.as_json())
    for provider, about in listed.providers.items():
        print(wrapped(f"{provider:<10} {about}", indent=11))
    for model in listed.bundled:
        where = f"in {model.folder}" if model.folder else f"fetched at first use ({model.download_mb} MB)"
        facts = f"{model.spec}: {model.about}, {model.licence}, from {model.package}; {where}"
        print(f"\n{wrapped(facts, indent=2)}")
    return 0


@dataclass(frozen=True, slots=True)
class ModelList:
    """The forms of specs, and the bundled models."""

    providers: dict[str, str]
    bundled: "list[BundledModel]"

    def as_json(self) -> dict[str, object]:
        """The documented form of `models --json`."""
        return asdict(self)


def list_models(*, fetch: bool = False) -> ModelList:
    """Everything that `model:` can name; no model is loaded, and a bundled one is downloaded only to `fetch` it."""
    from skillmix.models.bundled import SOURCES, bundled_model, bundled_models
    from skillmix.models.specs import provider_forms

    for name in SOURCES if fetch else ():
        bundled_model(name)
    return ModelList(provider_forms(), bundled_models())
