"""Judge a text by code alone: the requested skills, the topic, the sense, and skills that were not requested."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from skillmix.catalog.names import fold_name
from skillmix.checkers.passage import Passage, Span, passage_of
from skillmix.checkers.prompt_copies import PromptTexts
from skillmix.checkers.registry import all_checkers, checker_of, may_repeat, why_not_shown
from skillmix.checkers.sense import sense_problem
from skillmix.checkers.topic import TopicWords, on_topic, topic_problem, topic_words


@dataclass(frozen=True)
class Verdict:
    """The decisions of code on one text, with the span that earned each point."""

    passage: Passage
    evidence: Mapping[str, Span | None]
    """The span that shows each requested skill, or None if no span does. Skills without a checker are absent."""
    topic: Span | None
    nonsense: str | None
    """Why the text does not make sense; None if it does."""
    topic_words: TopicWords
    """The words of the topic."""

    @cached_property
    def reasons(self) -> Mapping[str, str]:
        """The reason for each point that code denies, by criterion; computed on first use."""
        return dict(self._reasons())

    def _reasons(self) -> Iterator[tuple[str, str]]:
        for skill, span in self.evidence.items():
            if span is None:
                yield skill, why_not_shown(skill)
        if self.topic is None:
            yield "topic", topic_problem(self.passage, self.topic_words)
        if self.nonsense is not None:
            yield "sense", self.nonsense

    @cached_property
    def unrequested(self) -> tuple[str, ...]:
        """Skills that the text shows although the prompt did not request them."""
        return tuple(
            name
            for name, checker in all_checkers().items()
            if name not in self._wanted and checker(self.passage) is not None
        )

    @cached_property
    def _wanted(self) -> frozenset[str]:
        return frozenset(fold_name(name) for name in self.evidence)

    def quote(self, span: Span | None) -> str | None:
        """The text of a span."""
        return None if span is None else self.passage.text[span.start : span.end]


class Judge:
    """Judges texts by the vocabulary of topics, and against the prompt's own sentences, which a text must not copy."""

    def __init__(self, vocabulary: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]], shown: PromptTexts) -> None:
        self._vocabulary = vocabulary
        self._topics: dict[str, TopicWords] = {}
        self._shown = shown

    def judge(self, text: str, *, skills: Iterable[str], topic: str) -> Verdict:
        """Judge one text."""
        passage = passage_of(text)
        evidence = {}
        for skill in skills:
            checker = checker_of(skill)
            if checker is not None:
                evidence[skill] = checker(passage)
        words = self._words_of(topic)
        repeating = [span for skill, span in evidence.items() if span is not None and may_repeat(skill)]
        nonsense = sense_problem(passage, self._shown, repeating)
        return Verdict(passage, evidence, on_topic(passage, words), nonsense, words)

    def _words_of(self, topic: str) -> TopicWords:
        if topic not in self._topics:
            alone, together = self._vocabulary.get(topic, ((), ()))
            self._topics[topic] = topic_words(topic, alone, together)
        return self._topics[topic]
