"""Facts about a student's text besides its points: its settings, categories, ending and length."""

from dataclasses import dataclass
from functools import cached_property

from skillmix.experiment.plan import PlannedCell
from skillmix.grading.answers import AnswerStatus, Rules, count_sentences
from skillmix.grading.points import StudentText
from skillmix.prompts.rubric import length_limit
from skillmix.runs.run import Run

IMPORTED = "imported"
"""The setting of texts that were imported."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What an analysis of a text needs besides its points."""

    settings: tuple[str, ...]
    """Settings whose scores count the text; mostly one. Empty for texts that no score counts."""
    categories: tuple[str | None, ...]
    """The category of each skill, in the order of the skills; None if the catalog does not have the skill."""
    status: AnswerStatus
    finish: str | None
    """Why the reply ended, in the provider's words; None if unknown."""
    cut: bool | None
    """Whether the reply ended at the token limit; None if unknown."""
    characters: int
    words: int
    sentences: int
    """Counted as the scoring rules count them."""
    sentence_limit: int
    """Sentences that the student may write; in an output format its items, turns or lines."""


class TextFactsReader:
    """Works out the facts about the texts of one run."""

    def __init__(self, run: Run, rules: Rules) -> None:
        self._run = run
        self._rules = rules

    def facts(self, text: StudentText) -> TextFacts:
        """The facts about one text."""
        words = text.answer.text
        return TextFacts(
            settings=self._settings_of(text),
            categories=tuple(self._categories.get(skill) for skill in text.combination.skills),
            status=text.answer.status,
            finish=text.finish,
            cut=text.is_cut,
            characters=len(words),
            words=len(words.split()),
            sentences=count_sentences(words, self._rules.counter),
            sentence_limit=length_limit(text.combination.k, self._run.phrases.format),
        )

    def _settings_of(self, text: StudentText) -> tuple[str, ...]:
        if self._run.is_imported:
            return (IMPORTED,)
        cells = (self._cells[index] for index in self._by_combination.get(text.combination.id, ()))
        own = (cell for cell in cells if cell.student == text.student and text.generation in cell.numbers)
        return tuple(dict.fromkeys(cell.label for cell in own))

    @cached_property
    def _cells(self) -> list[PlannedCell]:
        now, before = counted_cells(self._run)
        return [*now, *before]

    @cached_property
    def _by_combination(self) -> dict[str, tuple[int, ...]]:
        """The indices of the cells of each combination; equal ones are in memory once, as a run may have millions."""
        found: dict[str, tuple[int, ...]] = {}
        once: dict[tuple[int, ...], tuple[int, ...]] = {}
        for index, cell in enumerate(self._cells):
            for combination in cell.combinations:
                indices = (*found.get(combination.id, ()), index)
                found[combination.id] = once.setdefault(indices, indices)
        return found

    @cached_property
    def _categories(self) -> dict[str, str]:
        catalog = self._run.unchanged_catalog
        return {skill.name: skill.category for skill in catalog.skills} if catalog else {}


def counted_cells(run: Run) -> tuple[list[PlannedCell], list[PlannedCell]]:
    """The cells that scores count, of the present experiment and of earlier ones.

    Texts that were written for training data do not stand for an evaluation.
    """
    evaluated = {(c.student, c.label, c.k) for c in (*run.cells, *run.earlier_cells) if c.purpose == "evaluation"}
    now, before = (
        [c for c in cells if c.purpose == "evaluation" or (c.student, c.label, c.k) not in evaluated]
        for cells in (run.cells, run.earlier_cells)
    )
    return now, before
