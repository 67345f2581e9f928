"""A text judged by code alone: the skills it was to show, its topic, its sense, and what else it shows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from skillmix.catalog.names import fold_name
from skillmix.checkers.passage import Passage, Span, passage_of
from skillmix.checkers.prompt_copies import PromptTexts
from skillmix.checkers.registry import all_checkers, checker_of, why_not_shown
from skillmix.checkers.sense import sense_problem
from skillmix.checkers.topic import TopicWords, on_topic, topic_problem, topic_words


@dataclass(frozen=True)
class Verdict:
    """What a text earns, with the part of it that earned each point."""

    passage: Passage
    evidence: Mapping[str, Span | None]
    """The span that shows each wanted skill; None where none does. A skill without a checker is not in it."""
    topic: Span | None
    nonsense: str | None
    """Why it does not make sense, if so."""
    topic_words: TopicWords
    """What was looked for on the topic."""

    @cached_property
    def reasons(self) -> Mapping[str, str]:
        """Why each point that code denies is denied, by criterion; worked out only for those who show it."""
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
        """Skills that it shows without having been asked for."""
        return tuple(
            name
            for name, checker in all_checkers().items()
            if name not in self._wanted and checker(self.passage) is not None
        )

    @cached_property
    def _wanted(self) -> frozenset[str]:
        return frozenset(fold_name(name) for name in self.evidence)

    def quote(self, span: Span | None) -> str | None:
        """The words of a span."""
        return None if span is None else self.passage.text[span.start : span.end]


class Judge:
    """What texts are judged by: the topics' words, and the prompts' own sentences, which do not count when copied."""

    def __init__(self, vocabulary: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]], shown: PromptTexts) -> None:
        self._vocabulary = vocabulary
        self._topics: dict[str, TopicWords] = {}
        self._shown = shown

    def judge(self, text: str, *, skills: Iterable[str], topic: str) -> Verdict:
        """One text."""
        passage = passage_of(text)
        evidence = {}
        for skill in skills:
            checker = checker_of(skill)
            if checker is not None:
                evidence[skill] = checker(passage)
        words = self._words_of(topic)
        return Verdict(passage, evidence, on_topic(passage, words), sense_problem(passage, self._shown), words)

    def _words_of(self, topic: str) -> TopicWords:
        if topic not in self._topics:
            alone, together = self._vocabulary.get(topic, ((), ()))
            self._topics[topic] = topic_words(topic, alone, together)
        return self._topics[topic]
