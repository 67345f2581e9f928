"""The provider `composer:CATALOG`: code that writes texts for a catalog with a grammar of figures of speech.

The composer fills the slots of the grammar and joins clauses so that the checkers find each requested skill and no
other skill. A text depends only on the request's seed, or on its key if it has no seed.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from random import Random
from typing import Final, TypeVar

from skillmix.calls import CallProblem, Outcome, Reply, Request
from skillmix.catalog.catalog import Catalog
from skillmix.catalog.files import load_catalog
from skillmix.catalog.grammar import Frames, Grammar, with_article
from skillmix.errors import UserError
from skillmix.hashing import digest
from skillmix.models.simple import CodeModel
from skillmix.models.specs import ModelOptions, ModelSpec
from skillmix.prompts.rubric import sentence_limit

_WEAVES: Final = 0.75  # the probability that several skills share one clause, if the grammar permits it
_DESCRIBES: Final = 0.4  # the probability that a frame with a suitable slot gains an adjective
_DESCRIBED: Final = ("the {who}", "the {thing}", "the {tool}", "{a thing}")
_AUXILIARIES: Final = (" could ", " would ")  # verbs that prevent two clauses from sharing a subject
_Skill = tuple[str, str]  # a figure of speech and its word
_Clause = tuple[str, bool]  # a clause, and whether a conjunction may join it to another
_Way = tuple[Sequence[str], _Skill | None, _Skill | None, _Skill | None]
"""The frames to choose from, the skill that the main clause shows, and the skills of the parts before and after it."""
_T = TypeVar("_T")


class Composer:
    """Writes texts for combinations from one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        if catalog.grammar is None:
            raise UserError(
                f"composer: cannot write texts for the catalog {catalog.name!r}, which has no grammar.yaml.",
                hint="Use a catalog that has one, such as composer:figures.",
            )
        self._grammar = catalog.grammar
        self._parts = {s.name: (s.figure, s.word) for s in catalog.skills if s.figure and s.word}

    def write(self, skills: Sequence[str], topic: str, seed: int | str) -> str | None:
        """Write a short text with these skills on a topic; return None if the grammar lacks the topic or a skill."""
        if topic not in self._grammar.topics or any(skill not in self._parts for skill in skills):
            return None
        draw = Random(int.from_bytes(digest("composer", seed, size=8)))
        order = list(skills)
        for last in range(len(order) - 1, 0, -1):  # unlike `shuffle`, equal in every Python version
            other = int(draw.random() * (last + 1))
            order[last], order[other] = order[other], order[last]
        writer = _Text(self._grammar, self._grammar.topics[topic].slots, draw, is_single=len(order) == 1)
        most = sentence_limit(len(order))
        least = max(1, most - 1)
        count = least + int(draw.random() * (most - least + 1))
        parts = [self._parts[skill] for skill in order]
        return " ".join(writer.sentence(parts[number::count]) for number in range(count))


class _Text:
    """Writes the sentences of one text."""

    def __init__(self, grammar: Grammar, topic: Sequence[Mapping[str, str]], draw: Random, *, is_single: bool) -> None:
        self._grammar = grammar
        self._is_single = is_single
        self._topic = topic
        self._draw = draw

    def sentence(self, skills: Sequence[_Skill]) -> str:
        """Write a sentence that shows these skills; put a question last, and try to vary how the clauses begin."""
        for _ in range(3):
            clauses = self._clauses(skills)
            if len({tuple(clause.split(" ", 2)[:2]) for clause, _ in clauses}) == len(clauses):
                break
        clauses.sort(key=lambda clause: clause[0].endswith("?"))
        text, is_open = clauses[0]
        subject = f"the {self._topic[0]['who']} "
        for clause, may_be_joined in clauses[1:]:
            is_shared = text.startswith(subject) and clause.startswith(subject) and "," not in text
            if not (is_open and may_be_joined):
                text = f"{text}; {clause}"
            elif is_shared and not any(verb in text + clause for verb in _AUXILIARIES):
                text = f"{text} and {clause.removeprefix(subject)}"
            else:
                text += self._pick(self._grammar.joints) + clause
            is_open = may_be_joined
        start = 1 if text[0] == '"' else 0
        text = text[:start] + text[start].upper() + text[start + 1 :]
        return text if text[-1] == "?" else f'{text[:-1]}."' if text[-1] == '"' else f"{text}."

    def _clauses(self, skills: Sequence[_Skill]) -> list[_Clause]:
        """Write one clause for all skills if the grammar allows it and a random draw selects it; else write several."""
        ways = self._ways(skills) if len(skills) == 1 or self._draw.random() < _WEAVES else []
        if ways:
            frames, host, before, after = self._pick(ways)
            frame = self._pick(frames)
            text = self._fill(frame, host)
            if before:
                text = self._fill(self._pick(self._frames(before).before), before) + text
            if after:
                text += self._fill(self._pick(self._frames(after).after), after)
            return [(text, before is None and (host is None or frame in self._frames(host).hosts))]
        cut = 1 + int(self._draw.random() * (len(skills) - 1))
        return [*self._clauses(skills[:cut]), *self._clauses(skills[cut:])]

    def _ways(self, skills: Sequence[_Skill]) -> list[_Way]:
        """Return the ways to show all these skills in a single clause."""
        ways: list[_Way] = []
        for host in (None, *skills):
            guests = [skill for skill in skills if skill is not host]
            if host and not guests:
                ways.append((self._frames(host).own, host, None, None))
            elif len(guests) <= 2 and (host or len(guests) > 1 or self._is_single):
                events = self._frames(host).events if host else self._grammar.plain
                fit_everywhere = all(self._frames(guest).fits == "any" for guest in guests)
                frames = self._frames(host).hosts if host and fit_everywhere else events
                for before, after in permutations([*guests, None][:2], 2):
                    has_before = before is None or self._frames(before).before
                    has_after = after is None or self._frames(after).after
                    if frames and has_before and has_after:
                        ways.append((frames, host, before, after))
        return ways

    def _fill(self, frame: str, skill: _Skill | None) -> str:
        slots = dict(self._pick(self._topic))
        described = [slot for slot in _DESCRIBED if slot in frame]
        if described and self._grammar.adjectives and self._draw.random() < _DESCRIBES:
            slot, adjective = self._pick(described), self._pick(self._grammar.adjectives)
            named = f"{adjective} {slots['thing']}"
            told = with_article(named) if slot == "{a thing}" else slot.replace("the ", f"the {adjective} ")
            frame = frame.replace(slot, told, 1)
        if skill:
            slots |= {"word": skill[1], "a word": with_article(skill[1])}
        if "{Clause}" in frame:
            clause = self._fill(self._pick(self._grammar.plain), None)
            slots["Clause"] = clause[0].upper() + clause[1:]
        return frame.format_map(slots)

    def _frames(self, skill: _Skill) -> Frames:
        return self._grammar.figures[skill[0]]

    def _pick(self, choices: Sequence[_T]) -> _T:
        return choices[int(self._draw.random() * len(choices))]


class ComposerModel(CodeModel):
    """A student whose texts are written by the composer."""

    def __init__(self, spec: ModelSpec, options: ModelOptions | None = None) -> None:
        self._catalog = spec.name or "figures"
        self._composer = Composer(load_catalog(self._catalog))

    def answer(self, request: Request) -> Outcome:
        """Write the text for a request, preceded by 'Answer:' if the prompt contains that word."""
        seed = str(request.key) if request.seed is None else request.seed
        wanted = request.subject.combination if request.subject else None
        text = self._composer.write(wanted.skills, wanted.topic, seed) if wanted else None
        if text is None:
            return CallProblem(
                "fatal",
                "the composer cannot write this text",
                f"The catalog {self._catalog!r} lacks a skill or the topic; composer:CATALOG selects another catalog.",
            )
        words = sum(len(message.content.split()) for message in request.messages)
        has_form = any("Answer:" in message.content for message in request.messages)
        reply = f"Answer: {text}\n\nExplanation: the clauses show the skills." if has_form else text
        return Reply(reply, finish="stop", input_tokens=words, output_tokens=len(reply.split()))
