"""Count the calls of a run that are done, missing, failed or unreadable, and add up their cost."""

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass

from skillmix.calls import CallProblem, GradeKey, Reply, is_human
from skillmix.experiment.experiment import Experiment
from skillmix.grading.points import earns_nothing
from skillmix.runs.batches.waves_in_batches import WaveInBatch, waves_in_batches
from skillmix.runs.judging.judged_texts import judged_conversations
from skillmix.runs.reading.graded_conversations import conversations
from skillmix.runs.reading.run_records import RecordsBuilder, RunRecords
from skillmix.runs.run import TURNS, Run, open_run
from skillmix.scores.scoring import SkippedCell, run_scores, skipped_cells


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

    @property
    def submitted(self) -> int:
        """Calls that are part of batches."""
        return sum(wave.calls for wave in self.batches)

    def as_json(self) -> dict[str, object]:
        """The documented form of `status --json`; a run without batches has neither `submitted` nor `batches`."""
        calls = {"done": self.done, "missing": self.missing, "failed": self.failed}
        document = {"calls": calls, "unreadable": self.unreadable, "cost_usd": self.cost_usd}
        if not self.batches:
            return document
        return document | {
            "calls": calls | {"submitted": self.submitted},
            "batches": [asdict(wave) for wave in self.batches],
        }


def run_status(run: str | Run) -> Status:
    """Count the calls in a run's journal, and those that its experiment still needs."""
    run = open_run(run) if isinstance(run, str) else run
    done = failed = 0
    cost = 0.0
    with run.read() as journal:
        for call in (*journal.calls("generate"), *journal.calls("grade")):
            if isinstance(call.key, GradeKey) and is_human(call.key.grader):
                continue  # a person's answer is no call
            problem = call.outcome if isinstance(call.outcome, CallProblem) else None
            is_own = problem is not None and problem.kind == "final"
            failed += problem is not None and not is_own
            done += isinstance(call.outcome, Reply) or is_own
            cost += (call.outcome.cost_usd or 0.0) if isinstance(call.outcome, Reply) else 0.0
        cost += journal.cost_without_reply()
        builder = RecordsBuilder(run, run.code)
        unreadable = 0
        for conversation, judged in judged_conversations(run, conversations(run, journal), run.code):
            builder.add(conversation, judged)
            unreadable += sum(reading is not None and reading.points is None for reading in conversation.readings)
    records = run.remember("records", builder.records)
    return Status(done, _missing(run, records), failed, unreadable, cost, tuple(waves_in_batches(run)))


def _missing(run: Run, records: RunRecords) -> int:
    """Count the calls that a resume is sure to make: turns, and votes on texts that exist."""
    experiment, rules = run.experiment, run.rules()
    written = {text.conversation: text for text in records.texts}
    votes = {(*ballot.text.conversation, ballot.grader): ballot for ballot in records.ballots}
    with run.read() as journal:
        spoken = Counter((c.key.student, c.key.combination, c.key.generation) for c in journal.calls("generate"))
    missing = 0
    skipped = skipped_cells(experiment, run_scores(run)) if _may_stop_early(experiment) else set()
    for (student, combination, generation), graders in _conversations(run, skipped).items():
        text = written.get((student, combination, generation))
        if text is None:
            missing += TURNS - spoken[student, combination, generation]
        elif not earns_nothing(text.answer, rules):
            for grader in graders:
                ballot = votes.get((student, combination, generation, grader))
                missing += experiment.graders[grader].votes - (len(ballot.readings) if ballot else 0)
    return missing


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
