"""Measure whether a language model can combine skills in one text, and train it to do so."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from skillmix.api import RunView as Run
    from skillmix.api import (
        build_dataset,
        calibrate,
        check,
        draw,
        evaluate,
        frequency,
        grader_cards,
        open_run,
        read_reply,
        run,
        score,
        train,
    )
    from skillmix.calls import CallProblem, Limits, Model, Reply, Request
    from skillmix.catalog.combinations import Combination, combination_of
    from skillmix.catalog.files import load_catalog
    from skillmix.catalog.own_code import trusting_code
    from skillmix.errors import UserError
    from skillmix.models.simple import SimpleModel
    from skillmix.models.specs import ModelOptions, ModelSpec
    from skillmix.prompts.prompt_set import load_prompts
    from skillmix.runs.people import HumanAnswer
    from skillmix.validation.sample import texts_for_width

# fmt: off
__all__ = [
    "CallProblem", "Combination", "HumanAnswer", "Limits", "Model", "ModelOptions", "ModelSpec", "Reply", "Request",
    "Run", "SimpleModel", "UserError", "__version__", "build_dataset", "calibrate", "check", "combination_of", "draw",
    "evaluate", "frequency", "grader_cards", "load_catalog", "load_prompts", "open_run", "read_reply", "run", "score",
    "texts_for_width", "train", "trusting_code",
]
# fmt: on
_MODULES = {
    "calls": ("CallProblem", "Limits", "Model", "Reply", "Request"),
    "catalog.combinations": ("Combination", "combination_of"),
    "catalog.files": ("load_catalog",),
    "catalog.own_code": ("trusting_code",),
    "errors": ("UserError",),
    "models.simple": ("SimpleModel",),
    "models.specs": ("ModelOptions", "ModelSpec"),
    "prompts.prompt_set": ("load_prompts",),
    "runs.people": ("HumanAnswer",),
    "validation.sample": ("texts_for_width",),
}
"""The public names outside skillmix.api, by module."""


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that the command line starts without heavy imports."""
    if name not in __all__:
        raise AttributeError(f"module 'skillmix' has no attribute {name!r}")
    place = next((module for module, names in _MODULES.items() if name in names), "api")
    module = import_module(f"{__name__}.{place}")
    value = getattr(module, "RunView" if name == "Run" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, so that a notebook can complete them before they are loaded."""
    return sorted(__all__)
