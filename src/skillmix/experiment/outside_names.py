"""Check the names in an experiment that lead outside its file: a catalog, a partition, excluded skills and prompts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.prompts.files import load_prompts


@dataclass(frozen=True, slots=True)
class OutsideNames:
    """The names, by their locations in the experiment where there may be several."""

    catalog: str
    partition: str | None
    exclude: Mapping[str, Sequence[str]]
    prompts: Mapping[str, str]
    without_skills: Sequence[str] = ()
    """Locations of k = 0, which only catalogs of probes have."""

    def faults(self) -> Iterator[str]:
        """Every name that leads nowhere, with its location."""
        catalog: list[Catalog] = []
        yield from _fault("catalog", lambda: catalog.append(load_catalog(self.catalog)))
        for known in catalog:
            yield from (f"{at}: 0 is below 1" for at in self.without_skills if not known.controls)
            yield from _fault("partition", lambda known=known: known.partition(self.partition))  # type: ignore[misc]
            for at, names in self.exclude.items():
                for name in names:
                    yield from _fault(at, lambda name=name, known=known: known.excluded([name]))  # type: ignore[misc]
        for at, name in self.prompts.items():
            yield from _fault(at, lambda name=name: load_prompts(name))  # type: ignore[misc]


def _fault(at: str, use: Callable[[], object]) -> Iterator[str]:
    """The fault of a name, if using it fails."""
    try:
        use()
    except UserError as error:
        yield f"{at}: {error.message} {error.hint or ''}".rstrip()
    except (OSError, ValueError) as error:  # a name too long for a path, or one with a null character
        yield f"{at}: the name cannot be a folder: {getattr(error, 'strerror', None) or error}"
