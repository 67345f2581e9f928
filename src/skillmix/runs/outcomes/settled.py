"""An outcome on its way into the journal, and what becomes of its call."""

from dataclasses import replace
from typing import NamedTuple

from skillmix.calls import CallProblem, GenerateKey, Outcome
from skillmix.errors import UserError
from skillmix.runs.budget import Task
from skillmix.runs.journal.row_writer import Try


class Arrival(NamedTuple):
    """An outcome on its way into the journal."""

    task: Task
    outcome: Outcome
    seconds: float


class Settled(NamedTuple):
    """A call with its try, and what becomes of it."""

    task: Task
    tried: Try
    wait: float | None = None
    """Seconds until the call is tried again."""
    is_dropped: bool = False


def of_its_role(task: Task, outcome: Outcome) -> Outcome:
    """A student's refusal is its outcome; a grader's refusal is only a missing vote."""
    is_final = isinstance(outcome, CallProblem) and outcome.kind == "final"
    if is_final and isinstance(outcome, CallProblem) and not isinstance(task.request.key, GenerateKey):
        return replace(outcome, kind="failed")
    return outcome


def unusable(task: Task, problem: CallProblem) -> UserError:
    """The error of a run whose model cannot be used."""
    return UserError(
        f"{task.request.model} cannot be used: {problem.reason}. {problem.detail}".rstrip(),
        hint="Check its name, its address and the key in the environment; finished calls are kept.",
    )
