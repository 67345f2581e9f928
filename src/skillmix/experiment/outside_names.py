"""Check the names in an experiment that lead outside its file: catalogs, partitions, excluded skills and prompts."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.experiment.steps import EvaluateStep
from skillmix.prompts.files import load_prompts

if TYPE_CHECKING:
    from skillmix.experiment.experiment import Experiment


def outside_faults(experiment: "Experiment") -> list[str]:
    """Every name that leads nowhere, with its location."""
    return list(_catalog_faults(experiment)) + list(_prompt_faults(experiment))


def _catalog_faults(experiment: "Experiment") -> Iterator[str]:
    catalog: list[Catalog] = []
    yield from _fault("catalog", lambda: catalog.append(load_catalog(experiment.catalog)))
    if catalog:
        (known,) = catalog
        yield from _fault("partition", lambda: known.partition(experiment.partition))
        lists = {"exclude": experiment.exclude}
        lists |= {f"steps.{s.name}.exclude": s.exclude for s in experiment.steps if isinstance(s, EvaluateStep)}
        for at, names in lists.items():
            for name in names:
                yield from _fault(at, lambda name=name: known.excluded([name]))  # type: ignore[misc]


def _prompt_faults(experiment: "Experiment") -> Iterator[str]:
    sets = {"prompts": experiment.prompts}
    sets |= {f"students.{name}.prompts": s.prompts for name, s in experiment.students.items() if s.prompts}
    for at, name in sets.items():
        yield from _fault(at, lambda name=name: load_prompts(name))  # type: ignore[misc]


def _fault(at: str, use: Callable[[], object]) -> Iterator[str]:
    """The fault of a name, if using it fails."""
    try:
        use()
    except UserError as error:
        yield f"{at}: {error.message} {error.hint or ''}".rstrip()
    except (OSError, ValueError) as error:  # a name too long for a path, or one with a null character
        yield f"{at}: the name cannot be a folder: {getattr(error, 'strerror', None) or error}"
