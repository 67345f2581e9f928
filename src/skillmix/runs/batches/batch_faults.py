"""Why a provider refused a whole batch, and what that means for its calls."""

import json
import re
from dataclasses import dataclass, replace
from typing import Final

from skillmix.calls import CallProblem
from skillmix.models.batches.batch_records import BatchView, shown
from skillmix.models.servers.http import Endpoint, Refused

_ABOUT_ROOM: Final = re.compile(r"token.?limit|enqueued|too many|quota.{0,40}batch|batch.{0,40}limit", re.IGNORECASE)
"""Refusals that pass when other batches have ended, or for a smaller batch."""


@dataclass(frozen=True, slots=True)
class BatchRefusal:
    """A refusal of a whole batch; none of its calls was made."""

    problem: CallProblem
    is_about_room: bool
    """Whether a smaller batch, or the same one later, may be taken."""
    is_counted: bool = False
    """Whether only a few such refusals in a row are borne."""

    @property
    def words(self) -> str:
        """The refusal in words."""
        detail = f": {self.problem.detail}" if self.problem.detail else ""
        return f"{self.problem.reason}{detail}"

    @staticmethod
    def of_view(view: BatchView, endpoint: Endpoint) -> "BatchRefusal":
        """The refusal of a batch that failed after its creation."""
        texts = [f"{fault.code} {fault.message}".strip() for fault in view.faults]
        text = "; ".join(texts[:3]) or f"the batch has the state {view.word}"
        raw = json.dumps({"error": {"message": text}}).encode()
        found = endpoint.failure(400, raw)
        problem = found.problem if isinstance(found, Refused) else found
        if problem.kind != "fatal":
            problem = CallProblem("passing", f"batch {shown(view.word)}", shown(text), is_free=True)
        is_about_room = bool(_ABOUT_ROOM.search(text))
        return BatchRefusal(problem, is_about_room, is_counted=not is_about_room)


def refusal_of(problem: CallProblem) -> BatchRefusal:
    """The refusal by a call that uploads or creates a batch."""
    is_about_room = bool(_ABOUT_ROOM.search(problem.detail))
    if is_about_room and problem.kind == "failed":
        problem = replace(problem, kind="passing")
    return BatchRefusal(replace(problem, is_free=True), is_about_room)
