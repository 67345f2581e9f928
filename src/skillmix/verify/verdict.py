"""A text judged by code alone: the skills it was to show, its topic, its sense, and what else it shows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from skillmix.core.folding import fold
from skillmix.verify.checkers import all_checkers, checker_of
from skillmix.verify.passage import Passage, Span, passage_of
from skillmix.verify.sense import runs_of, sense_problem
from skillmix.verify.topic import TopicWords, on_topic, topic_words


@dataclass(frozen=True)
class Verdict:
    """What a text earns, with the part of it that earned each point."""

    passage: Passage
    evidence: Mapping[str, Span | None]
    """The span that shows each wanted skill; None where none does. A skill without a checker is not in it."""
    topic: Span | None
    nonsense: str | None
    """Why it does not make sense, if so."""

    @cached_property
    def unrequested(self) -> tuple[str, ...]:
        """Skills that it shows without having been asked for."""
        return tuple(
            name
            for name, checker in all_checkers().items()
            if name not in self._wanted and checker(self.passage) is not None
        )

    @cached_property
    def _wanted(self) -> frozenset[str]:
        return frozenset(fold(name) for name in self.evidence)

    def quote(self, span: Span | None) -> str | None:
        """The words of a span."""
        return None if span is None else self.passage.text[span.start : span.end]


class Judge:
    """What texts are judged by: the topics' words, and the prompts' own sentences, which do not count when copied."""

    def __init__(self, vocabulary: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]], told: Iterable[str]) -> None:
        self._vocabulary = vocabulary
        self._topics: dict[str, TopicWords] = {}
        self._runs = runs_of(told)

    def judge(self, text: str, *, skills: Iterable[str], topic: str) -> Verdict:
        """One text."""
        passage = passage_of(text)
        evidence = {}
        for skill in skills:
            checker = checker_of(skill)
            if checker is not None:
                evidence[skill] = checker(passage)
        return Verdict(passage, evidence, on_topic(passage, self._words_of(topic)), sense_problem(passage, self._runs))

    def _words_of(self, topic: str) -> TopicWords:
        if topic not in self._topics:
            alone, together = self._vocabulary.get(topic, ((), ()))
            self._topics[topic] = topic_words(topic, alone, together)
        return self._topics[topic]
