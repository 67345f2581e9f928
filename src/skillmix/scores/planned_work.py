"""The planned calls of an experiment, counted in the same way for dry run, status, progress bar and run."""

from collections import Counter
from collections.abc import Iterable

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination
from skillmix.experiment.experiment import Experiment
from skillmix.experiment.plan import PlannedCell, step_cells
from skillmix.experiment.step_base import Step
from skillmix.models.specs import provider_of
from skillmix.runs.progress import Work
from skillmix.runs.students import settings_for, turns_of


def calls_a_conversation(experiment: Experiment, student: str, graders: Iterable[str]) -> int:
    """Count the calls for one conversation: the student's turns, and the votes of graders that call a model."""
    votes = sum(experiment.graders[name].votes for name in graders if experiment.graders[name].asked)
    return turns_of(experiment, student) + votes


_Part = tuple[range, tuple[str, ...]]
"""The numbers of some samples, and the graders of their texts."""


class PlannedCalls:
    """The planned calls for the given cells; a call that several settings and steps share counts once.

    The count is exact only if every text can be graded and every grade can be parsed.
    """

    def __init__(self, cells: Iterable[PlannedCell], experiment: Experiment) -> None:
        self._experiment = experiment
        self._combinations: dict[str, Combination] = {}
        self._parts: dict[str, dict[str, tuple[_Part, ...]]] = {}
        for cell in cells:
            part: _Part = cell.numbers, cell.graders
            alone = (part,)  # all combinations of a cell share one object
            own = self._parts.setdefault(cell.student, {})
            for combination in cell.combinations:
                self._combinations[combination.id] = combination
                parts = own.setdefault(combination.id, alone)
                if part not in parts:
                    own[combination.id] = (*parts, part)

    def graders(self, student: str, combination: str, generation: int) -> set[str] | None:
        """Return the graders of a conversation's text; None if the conversation is not planned."""
        parts = self._parts.get(student, {}).get(combination, ())
        own = [graders for numbers, graders in parts if generation in numbers]
        return {grader for graders in own for grader in graders} if own else None

    def conversations(self, *, student: str | None = None, grader: str | None = None) -> Counter[Combination]:
        """Count conversations by combination, optionally for one student, or only if a grader grades the text."""
        counts: Counter[Combination] = Counter()
        for name, own in self._parts.items():
            for combination, parts in own.items() if student in (None, name) else ():
                counts[self._combinations[combination]] += len(_numbers(parts, grader))
        return counts

    @property
    def total(self) -> int:
        """Count all planned calls: the turns of the conversations, and the votes on their texts."""
        votes = {name: s.votes for name, s in self._experiment.graders.items() if s.asked}
        calls = 0
        for student, own in self._parts.items():
            turns = turns_of(self._experiment, student)
            for parts, count in Counter(own.values()).items():
                calls += count * turns * len(_numbers(parts, None))
                calls += count * sum(each * len(_numbers(parts, name)) for name, each in votes.items())
        return calls


def _numbers(parts: Iterable[_Part], grader: str | None) -> set[int]:
    """Return the numbers of the samples whose texts a grader grades, or of all samples."""
    return {number for numbers, graders in parts if grader in (None, *graders) for number in numbers}


def planned_calls(step: Step, experiment: Experiment, catalog: Catalog) -> Work:
    """Return the number of calls that a step plans; for a data set, the smallest number that can reach its targets."""
    if step.planned_texts is None:
        total = PlannedCalls(step_cells(step, experiment, catalog), experiment).total
    else:
        (writer,) = step.student_names
        total = step.planned_texts * calls_a_conversation(experiment, writer, step.grader_names)
    # All models in this process count as one model, because a tuned model is as fast as its base.
    models = [settings_for(experiment, name).model for name in step.student_names]
    models += [model for name in step.grader_names if (model := experiment.graders[name].asked)]
    names = {"here" if provider_of(model).is_in_process else model for model in models}
    return Work(step.name, f"calls: {', '.join(sorted(names))}", total, step.call_bound)
