"""What graders wrote about the points that they denied, for a few texts of a run."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from skillmix.calls import GradeKey, Reply, is_human
from skillmix.catalog.combinations import Combination
from skillmix.grading.reader import outcome_words, read_grades, words_about
from skillmix.prompts.rubric import rubric_of
from skillmix.runs.reading.lookups import combinations_of
from skillmix.runs.run import Run


class TextUnderGrader(NamedTuple):
    """A text under one grader."""

    student: str
    combination: str
    generation: int
    grader: str


def denial_words(run: Run, denied: Mapping[TextUnderGrader, Collection[str]]) -> dict[TextUnderGrader, dict[str, str]]:
    """By text and criterion, what a grader wrote about a point that it denied; criteria without such words are absent.

    `denied` has the criteria of interest. The keys of the journal are read to the end, so call this once for all texts.
    """
    words: dict[TextUnderGrader, dict[str, str]] = {}
    if not any(denied.values()):
        return words
    with run.read() as journal:
        wanted = {text.combination for text in denied}
        combinations = combinations_of(journal, wanted)
        journal.limit_calls(wanted)
        for call in journal.calls("grade"):
            key = call.key
            assert isinstance(key, GradeKey)  # the stage holds grading calls only
            text = TextUnderGrader(key.student, key.combination, key.generation, key.grader)
            if text in denied and isinstance(call.outcome, Reply) and not is_human(key.grader):
                found = _words_in(run, combinations[key.combination], call.outcome.text, denied[text])
                words[text] = {**found, **words.get(text, {})}
    return words


def _words_in(run: Run, combination: Combination, reply: str, denied: Collection[str]) -> dict[str, str]:
    """What one reply says about the denied criteria that it denies itself, or about the outcome that it names."""
    rubric = rubric_of(combination.skills, combination.topic, phrases=run.phrases)
    points = read_grades(rubric, reply).by_name(rubric) or {}
    if rubric.has_outcomes:
        words = outcome_words(reply)
        return {name: words for name in denied if words and points.get(name) == 1.0}
    about = {
        criterion.name: words_about(rubric, index, reply)
        for index, criterion in enumerate(rubric.criteria)
        if criterion.name in denied and points.get(criterion.name) == 0.0
    }
    return {name: words for name, words in about.items() if words}
