"""Models that write and grade, and what a provider outside this package needs."""

from skillmix.calls import CallProblem, Message, Reply, Request
from skillmix.models.simple import SimpleModel
from skillmix.models.specs import ModelOptions, ModelSpec

__all__ = ["CallProblem", "Message", "ModelOptions", "ModelSpec", "Reply", "Request", "SimpleModel"]
