"""`skillmix models`: what a spec can be, and which bundled models lie in the cache."""

from dataclasses import asdict, dataclass

from skillmix.models.bundled import SOURCES, BundledModel, bundled_model, bundled_models
from skillmix.models.specs import provider_forms


@dataclass(frozen=True, slots=True)
class ModelList:
    """The forms of specs, and the bundled models."""

    providers: dict[str, str]
    bundled: list[BundledModel]

    def as_json(self) -> dict[str, object]:
        """As printed with `--json`."""
        return asdict(self)


def list_models(*, fetch: bool = False) -> ModelList:
    """Everything that `model:` and `grader:` can name, found out without loading any of it."""
    for name in SOURCES if fetch else ():
        bundled_model(name)
    return ModelList(provider_forms(), bundled_models())
