"""The old name of `skillmix.checkers.passage`, for one release."""

from skillmix.checkers.passage import *  # noqa: F403
