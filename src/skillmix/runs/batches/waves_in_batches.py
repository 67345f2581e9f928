"""Which calls of a run are in which batch, and how far each batch is.

A conversation takes three to five batches in a row: the two turns of the student, the gradings, and further attempts at
gradings that could not be read. Such a part of all conversations is a wave.
"""

from dataclasses import dataclass

from skillmix.render import plural
from skillmix.runs.run import Run

_QUERY = (
    "SELECT b.tag, b.model, b.dialect, b.state, b.batch, b.seen, b.at, c.stage, c.turn, c.attempt, count(*), "
    "total(c.cost_usd) FROM calls AS c JOIN batches AS b ON b.tag = c.batch WHERE c.status = 'submitted' "
    "GROUP BY b.tag, c.stage, c.turn, c.attempt ORDER BY b.at, b.tag, c.stage, c.turn, c.attempt"
)


@dataclass(frozen=True, slots=True)
class WaveInBatch:
    """Calls of one wave that are part of one batch."""

    tag: str
    model: str
    """The model as tasks name it, such as `grader:judge`."""
    dialect: str
    batch: str | None
    """The provider's id; None if it is not known."""
    state: str
    """The provider's last word for the state of the batch, or how far this side is."""
    since: str
    wave: str
    calls: int
    worst_usd: float
    """The most that these calls can cost, where prices are known."""

    @property
    def in_words(self) -> str:
        """A line for the terminal."""
        calls = plural(self.calls, "call")
        where = f"{self.dialect} {self.batch}" if self.batch else self.dialect
        return f"{self.wave} of {self.model.replace(':', ' ')}: {calls} in {where}, {self.state}, since {self.since}"


def waves_in_batches(run: Run) -> list[WaveInBatch]:
    """The waves of a run that are in batches, the oldest batch first."""
    with run.read() as journal:
        return [_wave(row) for row in journal.rows(_QUERY)]


def _wave(row: tuple[str, ...]) -> WaveInBatch:
    tag, model, dialect, state, batch, seen, at, stage, turn, attempt, calls, worst = row
    word = seen or {"written": "not sent yet", "creating": "perhaps created"}.get(state, state)
    since = str(at)[:16].replace("T", " ")
    wave = _name(str(stage), turn, attempt)
    return WaveInBatch(tag, model, dialect, batch, word, since, wave, int(calls), float(worst))


def _name(stage: str, turn: object, attempt: object) -> str:
    if stage == "generate":
        return {1: "first turns", 2: "second turns"}.get(int(str(turn)), f"turns {turn}")
    return "gradings" if not int(str(attempt)) else f"gradings, attempt {int(str(attempt)) + 1}"


def batch_lines(run: Run) -> list[str]:
    """A line for each wave in a batch."""
    return [wave.in_words for wave in waves_in_batches(run)]
