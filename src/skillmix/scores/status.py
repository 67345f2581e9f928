"""Count the calls of a run that are done, missing, failed or unreadable, and add up their cost."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Final

from skillmix.calls import Call, CallProblem, GenerateKey, GradeKey, is_human
from skillmix.catalog.combinations import Combination
from skillmix.experiment.experiment import Experiment
from skillmix.grading.ballots import StudentText
from skillmix.grading.points import earns_nothing
from skillmix.grading.replies.thoughts import CUT_IN_THOUGHT
from skillmix.render.numbers import dollars
from skillmix.render.untrusted import one_line
from skillmix.render.wording import plural
from skillmix.runs.batches.waves_in_batches import WaveInBatch, waves_in_batches
from skillmix.runs.journal.ahead import ConversationsAhead
from skillmix.runs.judging.judged_texts import judged_conversations
from skillmix.runs.reading.graded_conversations import (
    ConversationKey,
    WrittenConversation,
    graded_conversations,
    written_conversations,
)
from skillmix.runs.reading.marks import MarksBuilder, MarkTable, is_large
from skillmix.runs.reading.run_records import RecordsBuilder, RunRecords
from skillmix.runs.run import Run, open_run
from skillmix.runs.students import turns_of
from skillmix.scores.scoring import SkippedCell, run_scores, skipped_cells

_IMPORTED: Final = "imported"


@dataclass(frozen=True, slots=True)
class Status:
    """Counts of calls, and the sum of the costs that are known."""

    done: int
    missing: int
    failed: int
    unreadable: int
    cost_usd: float
    batches: tuple[WaveInBatch, ...] = ()
    """Calls that are part of batches: neither done nor missing nor failed."""
    unpriced: Mapping[str, int] = field(default_factory=dict)
    """Replies whose cost is not known, by the model; those that other programs made are under `imported`."""

    cut_in_thought: int = 0
    """Replies that ended before their thought did, and so hold no answer."""

    @property
    def submitted(self) -> int:
        """Calls that are part of batches."""
        return sum(wave.calls for wave in self.batches)

    def cost_line(self) -> str:
        """The cost so far, and the models whose price is not known.

        >>> Status(4, 0, 0, 0, 0.0).cost_line(), Status(4, 0, 0, 0, 1.5).cost_line()
        ('cost: none, as every reply was free', 'cost: 1.50 US dollars')
        >>> Status(4, 0, 0, 0, 0.0, unpriced={"openai:m": 1}).cost_line()
        'cost: unknown, as the price of openai:m is not known (1 call)'
        """
        known = f"{dollars(self.cost_usd)} US dollars"
        if not self.unpriced:
            free = "none, as every reply was free" if self.done else "none yet"
            return f"cost: {known if self.cost_usd else free}"
        reasons = [
            f"other programs made {plural(count, 'call')}"
            if model == _IMPORTED
            else f"the price of {one_line(model)} is not known ({plural(count, 'call')})"
            for model, count in self.unpriced.items()
        ]
        return f"cost: {f'at least {known}' if self.cost_usd else 'unknown'}, as {' and '.join(reasons)}"

    def as_json(self) -> dict[str, object]:
        """The documented form of `status --json`; empty counts, batches and prices are absent."""
        calls = {"done": self.done, "missing": self.missing, "failed": self.failed}
        document: dict[str, object] = {"calls": calls, "unreadable": self.unreadable, "cost_usd": self.cost_usd}
        if self.cut_in_thought:
            document["cut_in_thought"] = self.cut_in_thought
        if self.unpriced:
            document["unpriced"] = dict(self.unpriced)
        if not self.batches:
            return document
        return document | {
            "calls": calls | {"submitted": self.submitted},
            "batches": [asdict(wave) for wave in self.batches],
        }


def run_status(run: str | Run) -> Status:
    """Count the calls in a run's journal, and those that its experiment still needs."""
    run = open_run(run) if isinstance(run, str) else run
    counts = _CallCounts()
    begun: dict[ConversationKey, int] = defaultdict(int)
    untried = ConversationsAhead(run.journal).untried
    with run.read() as journal:
        for call in chain(journal.calls("generate"), journal.calls("grade")):
            if isinstance(call.key, GradeKey) and is_human(call.key.grader):
                continue  # a person's answer is no call
            counts.add(call)
            key = call.key.student, call.key.combination, call.key.generation
            if key in untried and isinstance(call.key, GenerateKey):
                begun[key] += 1
        counts.cost_usd += journal.cost_without_reply()
        texts = _texts(written_conversations(run, journal), begun)
        builder = RecordsBuilder(run, run.code)
        marks = MarksBuilder(run, run.rules()) if is_large(run) else None
        unreadable = cut = 0
        for conversation, judged in judged_conversations(run, graded_conversations(run, journal, texts), run.code):
            if marks is None:
                builder.add(conversation, judged)
            else:
                marks.add(conversation.text, builder.ballots_on(conversation, judged))
            cut += conversation.text.answer.status == CUT_IN_THOUGHT
            unreadable += sum(reading is not None and reading.points is None for reading in conversation.readings)
    if marks is not None:
        missing = _missing_in_table(run, marks.table(), begun)
    else:
        missing = _missing(run, run.remember("records", builder.records), begun)
    batches = tuple(waves_in_batches(run))
    return Status(counts.done, missing, counts.failed, unreadable, counts.cost_usd, batches, dict(counts.unpriced), cut)


@dataclass(slots=True)
class _CallCounts:
    """Counts of the calls that a journal has, and their cost."""

    done: int = 0
    failed: int = 0
    cost_usd: float = 0.0
    unpriced: Counter[str] = field(default_factory=Counter)

    def add(self, call: Call) -> None:
        if isinstance(call.outcome, CallProblem):
            is_own = call.outcome.kind == "final"
            self.done += is_own
            self.failed += not is_own
        elif call.outcome is not None:
            self.done += 1
            self.cost_usd += call.outcome.cost_usd or 0.0
            if call.outcome.cost_usd is None:
                self.unpriced[call.model if call.origin == "call" else _IMPORTED] += 1


def _texts(source: Iterable[WrittenConversation], begun: dict[ConversationKey, int]) -> Iterator[StudentText]:
    """The texts of conversations that are over; the turns of the others are counted."""
    for conversation in source:
        if conversation.text is not None:
            yield conversation.text
        else:
            begun[conversation.key] = len(conversation.turns)


def _missing(run: Run, records: RunRecords, begun: Mapping[ConversationKey, int]) -> int:
    """Count the calls that a resume is sure to make: turns, and votes on texts that exist."""
    experiment, rules = run.experiment, run.rules()
    written = {text.conversation: text for text in records.texts}
    votes = {(*ballot.text.conversation, ballot.grader): ballot for ballot in records.ballots}
    missing = 0
    for (student, combination, generation), graders in _conversations(run, _skipped(run)).items():
        text = written.get((student, combination, generation))
        if text is None:
            missing += turns_of(run.experiment, student) - begun.get((student, combination, generation), 0)
        elif not earns_nothing(text.answer, rules):
            for grader in graders:
                ballot = votes.get((student, combination, generation, grader))
                missing += experiment.graders[grader].votes - (len(ballot.readings) if ballot else 0)
    return missing


def _missing_in_table(run: Run, table: MarkTable, begun: Mapping[ConversationKey, int]) -> int:
    """The same for a large run, whose conversations are never all in memory as records."""
    skipped = _skipped(run)
    cells = [c for c in run.cells if (c.step, c.student, c.label, c.k) not in skipped]
    missing = 0
    for student in dict.fromkeys(cell.student for cell in cells):
        # Steps may share combinations, and a call is missing once.
        texts: dict[int, dict[str, Combination]] = defaultdict(dict)
        graded: dict[tuple[int, str], dict[str, Combination]] = defaultdict(dict)
        for cell in cells:
            own = {c.id: c for c in cell.combinations} if cell.student == student else {}
            for generation in range(cell.generations) if own else ():
                texts[generation].update(own)
                for grader in cell.graders:
                    graded[generation, grader].update(own)
        for generation, drawn in texts.items():
            for combination in table.unwritten(student, list(drawn.values()), generation):
                missing += turns_of(run.experiment, student) - begun.get((student, combination, generation), 0)
        for (generation, grader), drawn in graded.items():
            needed = run.experiment.graders[grader].votes
            missing += table.missing_votes(student, grader, list(drawn.values()), generation, needed)
    return missing


def _skipped(run: Run) -> set[SkippedCell]:
    return skipped_cells(run.experiment, run_scores(run)) if _may_stop_early(run.experiment) else set()


def _may_stop_early(experiment: Experiment) -> bool:
    return any(step.may_stop_early for step in experiment.steps)


def _conversations(run: Run, skipped: set[SkippedCell]) -> dict[tuple[str, str, int], set[str]]:
    """Every conversation that the run's experiment needs, with its graders."""
    graders: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for cell in run.cells:
        if (cell.step, cell.student, cell.label, cell.k) in skipped:
            continue
        for combination in cell.combinations:
            for generation in range(cell.generations):
                graders[cell.student, combination.id, generation] |= set(cell.graders)
    return graders
