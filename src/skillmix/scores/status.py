"""Count the calls of a run that are done, missing, failed or unparseable, and add up the costs."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from skillmix.grading.answers import CUT_IN_THOUGHT
from skillmix.grading.points import earns_nothing
from skillmix.render import dollars, one_line, plural
from skillmix.runs.journal import JournalReader
from skillmix.runs.progress import Bound
from skillmix.runs.run import Run, open_run
from skillmix.runs.students import turns_of
from skillmix.runs.texts import (
    ConversationKey,
    GradedConversation,
    WrittenConversation,
    grade_key,
    graded_conversations,
    written_conversations,
)
from skillmix.scores.planned_work import PlannedCalls, planned_calls
from skillmix.scores.scoring import run_scores, skipped_cells

_IN_BATCHES = (
    "SELECT b.tag, b.model, b.dialect, b.state, b.provider_id, b.seen, b.at, c.stage, c.turn, c.attempt, count(*), "
    "total(c.cost_usd) FROM call AS c JOIN batch AS b ON b.tag = c.batch WHERE c.status = 'submitted' "
    "GROUP BY b.tag, c.stage, c.turn, c.attempt ORDER BY b.at, b.tag, c.stage, c.turn, c.attempt"
)
_OUTCOMES: Final = (  # a person's answer is not a call
    "SELECT origin, model, status, problem_kind, cost_usd IS NOT NULL, count(*), "
    "total(iif(status = 'done', cost_usd, 0)) FROM call WHERE coalesce(grader, '') NOT LIKE 'human:%' "
    "GROUP BY 1, 2, 3, 4, 5 ORDER BY min(id)"
)
_UNCOUNTED: Final = (
    "SELECT student, combination, generation, count(*) FROM uncounted "
    "JOIN call USING (student, combination, generation) WHERE stage = 'generate' GROUP BY 1, 2, 3"
)


@dataclass(frozen=True, slots=True)
class PartInBatch:
    """Calls of one turn, or grading calls, that are part of one batch."""

    tag: str
    model: str
    """The model as tasks refer to it, such as `grader:judge`."""
    dialect: str
    batch: str | None
    """The provider's id; None if unknown."""
    state: str
    """The latest state that the provider reported, or the local progress if the batch does not exist yet."""
    since: str
    part: str
    """The position of the calls in their conversations: first turns, second turns or gradings."""
    calls: int
    worst_usd: float
    """The highest possible cost of these calls, as far as prices are known."""

    @property
    def in_words(self) -> str:
        """Describe the calls in a line for the terminal."""
        calls = plural(self.calls, "call")
        where = f"{self.dialect} {self.batch}" if self.batch else self.dialect
        return f"{self.part} of {self.model.replace(':', ' ')}: {calls} in {where}, {self.state}, since {self.since}"


def parts_in_batches(run: Run) -> list[PartInBatch]:
    """List the calls of a run that are in batches, oldest batch first."""
    parts = []
    with run.read() as journal:
        for tag, model, dialect, state, batch, seen, at, stage, turn, attempt, calls, worst in journal.rows(
            _IN_BATCHES
        ):
            word = seen or {"written": "not sent yet", "creating": "perhaps created"}.get(state, state)
            if stage == "generate":
                part = {1: "first turns", 2: "second turns"}.get(int(turn), f"turns {turn}")
            else:
                part = f"gradings, attempt {int(attempt) + 1}" if int(attempt) else "gradings"
            since = at[:16].replace("T", " ")
            parts.append(PartInBatch(tag, model, dialect, batch, word, since, part, int(calls), float(worst)))
    return parts


_IMPORTED: Final = "imported"


@dataclass(frozen=True, slots=True)
class Status:
    """The numbers of calls that are done, missing or failed, and the sum of the known costs."""

    done: int
    missing: int
    failed: int
    unreadable: int
    cost_usd: float
    batches: tuple[PartInBatch, ...] = ()
    """The parts in batches, whose calls count as neither done nor missing nor failed."""
    unpriced: Mapping[str, int] = field(default_factory=dict)
    """The number of replies with an unknown cost, by model; replies made by other programs are under `imported`."""
    missing_bound: Bound | None = None
    """Whether the number of missing calls is approximate or a bound, since some grades are retried or not needed."""

    cut_in_thought: int = 0
    """The number of replies that contain no answer because they ended while the model was still thinking."""

    @property
    def submitted(self) -> int:
        """Return the number of calls that are part of batches."""
        return sum(part.calls for part in self.batches)

    def cost_line(self) -> str:
        """Describe the cost so far, and list the models with unknown prices.

        >>> Status(4, 0, 0, 0, 0.0).cost_line(), Status(4, 0, 0, 0, 1.5).cost_line()
        ('cost: none, as every reply was free', 'cost: 1.50 US dollars')
        >>> Status(4, 0, 0, 0, 0.0, unpriced={"openai:m": 1}).cost_line()
        'cost: unknown, as the price of openai:m is unknown (1 call)'
        """
        known = f"{dollars(self.cost_usd)} US dollars"
        if not self.unpriced:
            free = "none, as every reply was free" if self.done else "none yet"
            return f"cost: {known if self.cost_usd else free}"
        reasons = [
            f"other programs made {plural(count, 'call')}"
            if model == _IMPORTED
            else f"the price of {one_line(model)} is unknown ({plural(count, 'call')})"
            for model, count in self.unpriced.items()
        ]
        return f"cost: {f'at least {known}' if self.cost_usd else 'unknown'}, as {' and '.join(reasons)}"

    def as_json(self) -> dict[str, object]:
        """Return the document that `status --json` prints, without optional fields that are empty."""
        calls = {"done": self.done, "missing": self.missing, "failed": self.failed}
        document: dict[str, object] = {"calls": calls, "unreadable": self.unreadable, "cost_usd": self.cost_usd}
        if self.cut_in_thought:
            document["cut_in_thought"] = self.cut_in_thought
        if self.unpriced:
            document["unpriced"] = dict(self.unpriced)
        if self.missing_bound:
            document["missing_bound"] = self.missing_bound
        if not self.batches:
            return document
        return document | {
            "calls": calls | {"submitted": self.submitted},
            "batches": [asdict(part) for part in self.batches],
        }


def run_status(run: str | Run) -> Status:
    """Count the calls in a run's journal, and the calls that its experiment still needs."""
    run = open_run(run) if isinstance(run, str) else run
    needed = _NeededCalls(run)
    done = failed = unreadable = cut = 0
    cost, unpriced = 0.0, Counter[str]()
    with run.read() as journal:
        for origin, model, status, problem, is_priced, calls, usd in journal.rows(_OUTCOMES):
            cost += usd
            if status == "done" or problem == "final":
                done += calls
            elif status == "problem":
                failed += calls
            if status == "done" and not is_priced:
                unpriced[model if origin == "call" else _IMPORTED] += calls
        for student, combination, generation, turns in journal.rows(_UNCOUNTED):
            needed.take((student, combination, generation), turns=turns)
        (without_reply,) = next(journal.rows("SELECT total(cost_usd) FROM attempt"))
        cost += without_reply

        def over() -> Iterator[WrittenConversation]:
            """Yield finished conversations; subtract the turns of all others."""
            for conversation in written_conversations(run, journal):
                if conversation.text is not None:
                    yield conversation
                else:
                    needed.take(conversation.key, turns=len(conversation.turns))

        for graded in graded_conversations(run, journal, over()):
            needed.take(graded.text.conversation, votes=needed.settled_votes(graded))
            cut += graded.text.answer.status == CUT_IN_THOUGHT
            unreadable += sum(reading is not None and reading.points is None for reading in graded.readings)
    return Status(
        done=done,
        missing=needed.number,
        failed=failed,
        unreadable=unreadable,
        cost_usd=cost,
        batches=tuple(parts_in_batches(run)),
        unpriced=dict(unpriced),
        missing_bound=needed.bound,
        cut_in_thought=cut,
    )


class _NeededCalls:
    """The calls that a run still needs: the planned calls minus those already made or no longer needed.

    A failed call counts as made, because it is already counted among the failed calls.
    """

    def __init__(self, run: Run) -> None:
        experiment = self._experiment = run.experiment
        self._rules = run.rules()
        self._may_stop_early = any(step.may_stop_early for step in experiment.steps)
        skipped = skipped_cells(experiment, run_scores(run)) if self._may_stop_early else set()
        cells = [c for c in run.cells if (c.step, c.student, c.label, c.k) not in skipped]
        self._planned = PlannedCalls(cells, experiment)
        self._of_plan = self._planned.total
        students = {name for step in experiment.steps for name in step.student_names}
        self._turns = {name: turns_of(experiment, name) for name in students}
        self._of_writers: Counter[str] = Counter()
        """The smallest number of calls that can reach the targets of data sets, by writer."""
        self._graders: dict[str, set[str]] = defaultdict(set)
        self._unfinished: set[str] = set()
        """The writers whose data sets are not finished."""
        for step in experiment.steps:
            for writer in step.student_names if step.planned_texts else ():
                self._of_writers[writer] += planned_calls(step, experiment, run.catalog).total or 0
                self._graders[writer] |= set(step.grader_names)
                if run.finished(step.name) is None:
                    self._unfinished.add(writer)

    def take(
        self, key: ConversationKey, *, turns: int | None = None, votes: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Subtract a conversation's turns, all of them by default, and the votes on its text."""
        graders = self._planned.graders(*key)
        settled = self._turns.get(key[0], 0) if turns is None else turns
        settled += sum(votes.get(name, 0) for name in (self._graders[key[0]] if graders is None else graders))
        if graders is None:
            self._of_writers[key[0]] -= settled
        else:
            self._of_plan -= settled

    def settled_votes(self, conversation: GradedConversation) -> dict[str, int]:
        """Return, by grader, the number of votes on a text that require no more calls."""
        asked = {name: settings for name, settings in self._experiment.graders.items() if settings.asked}
        if earns_nothing(conversation.text.answer, self._rules):
            return {name: settings.votes for name, settings in asked.items()}
        settled = {
            (key.grader, key.round)
            for call, reading in zip(conversation.calls, conversation.readings, strict=True)
            if (key := grade_key(call)).grader in asked
            and (reading is None or reading.points is not None or key.attempt + 1 >= asked[key.grader].attempts)
        }
        return Counter(grader for grader, _ in settled)

    @property
    def number(self) -> int:
        """Return the number of calls that are still needed."""
        return self._of_plan + sum(max(0, self._of_writers[writer]) for writer in self._unfinished)

    @property
    def bound(self) -> Bound | None:
        """Return whether `number` is approximate or a bound on the remaining calls; None if it is exact."""
        if self._unfinished:
            return "about" if self._may_stop_early and self._of_plan else "at least"
        if not self._of_plan:
            return None
        return "at most" if self._may_stop_early else "about"


_TOTALS: Final = (
    "SELECT stage, coalesce(grader, student), model, count(*), "
    "iif(sum(status = 'done' AND input_tokens IS NULL), NULL, sum(input_tokens)), "
    "iif(sum(status = 'done' AND output_tokens IS NULL), NULL, sum(output_tokens)), "
    "iif(sum(status = 'done' AND cost_usd IS NULL), NULL, sum(cost_usd)), min(at), max(at) "
    "FROM call WHERE origin = 'call' GROUP BY 1, 2, 3 ORDER BY min(id)"
)


@dataclass(frozen=True, slots=True)
class CallTotals:
    """The calls from one student or grader to one model."""

    role: Literal["student", "grader"]
    name: str
    model: str
    calls: int
    input_tokens: int | None
    """None, like every other total, if any reply does not report the value."""
    output_tokens: int | None
    cost_usd: float | None
    first: str
    """The time of the first call, in UTC."""
    last: str


def call_totals(journal: JournalReader) -> Iterator[CallTotals]:
    """Yield the totals of each student and grader of a run, starting with the earliest."""
    for stage, *others in journal.rows(_TOTALS):
        yield CallTotals("student" if stage == "generate" else "grader", *others)
