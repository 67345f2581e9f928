"""Measure whether a chat model can combine language skills, and teach it to."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Evaluation", "__version__", "evaluate"]

if TYPE_CHECKING:
    from skillmix.steps.python_api import Evaluation, evaluate


def __getattr__(name: str) -> Any:
    """Load the interface when it is used: the command's help needs none of it."""
    if name in ("Evaluation", "evaluate"):
        from skillmix.steps import python_api

        return getattr(python_api, name)
    raise AttributeError(f"module 'skillmix' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Names for completion in a notebook, those that are not loaded yet included."""
    return sorted({*globals(), *__all__})
