"""What a calibration asks: a grader about the texts of a set, in the words of a prompt set."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skillmix.calibration.known_texts import CalibrationSet
from skillmix.calibration.sets import load_set
from skillmix.calls import as_name
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.experiment.experiment import Experiment, GraderSettings, experiment_of
from skillmix.prompts.files import load_prompts
from skillmix.prompts.prompt_set import PromptSet
from skillmix.runs.rules_grader import require_checkers

STUDENT: Final = "calibration"
"""The student under whose name a run keeps the texts of a set."""


@dataclass(frozen=True, slots=True)
class CalibrationWish:
    """A calibration as a user asks for it."""

    grader: str | Mapping[str, object]
    """A spec, or a mapping with the keys of a grader in an experiment file."""
    set: str = "paper"
    catalog: str = "paper"
    prompts: str = "standard"
    run: str | None = None
    """The name of the run; by default that of the set and the grader."""
    size: int | None = None
    """How many texts of the set to take; by default all of them."""
    seed: int = 0
    max_usd: float | None = None
    bigbench: Path | None = None
    """The package `bigbench`: its source archive, or a folder with its files."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """A calibration with everything that it names loaded and checked."""

    known: CalibrationSet
    whole_size: int
    """Texts of the whole set, of which `known` may be a part."""
    catalog: Catalog
    prompts: PromptSet
    experiment: Experiment
    """Holds the grader and the budget; it has no steps."""
    grader: str
    run: str

    @property
    def settings(self) -> GraderSettings:
        """The settings of the grader."""
        return self.experiment.graders[self.grader]


def planned(wish: CalibrationWish) -> CalibrationPlan:
    """Load what a wish names, and find its faults before anything is asked."""
    catalog = load_catalog(wish.catalog)
    prompts = load_prompts(wish.prompts)
    document = {"model": wish.grader} if isinstance(wish.grader, str) else dict(wish.grader)
    name = as_name(str(document.get("model")))
    experiment = experiment_of(
        {
            "name": STUDENT,
            "seed": wish.seed,
            "catalog": wish.catalog,
            "prompts": wish.prompts,
            "graders": {name: document},
            "budget": {"max_usd": wish.max_usd},
            "steps": [],
        },
        source="The calibration",
    )
    whole = load_set(wish.set, catalog, bigbench=wish.bigbench)
    known = whole if wish.size is None else whole.subset(wish.size)
    settings = experiment.graders[name]
    if settings.asked is None:
        require_checkers(catalog, {text.skill for text in known.texts}, settings.model)
    else:
        prompts.grader_file(settings.prompts)
    return CalibrationPlan(
        known=known,
        whole_size=len(whole.texts),
        catalog=catalog,
        prompts=prompts,
        experiment=experiment,
        grader=name,
        run=wish.run or f"calibrate-{as_name(whole.name)}-{name}",
    )
