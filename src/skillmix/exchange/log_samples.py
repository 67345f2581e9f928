"""From the samples of an untrusted Inspect log to the calls of a run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from skillmix.calls import (
    ONLY_TURN,
    CallProblem,
    GenerateKey,
    GradeKey,
    Message,
    Outcome,
    Reply,
    Request,
    Role,
    text_id,
)
from skillmix.catalog.combinations import Combination
from skillmix.errors import UserError
from skillmix.exchange.inspect_log import mapping
from skillmix.exchange.task_settings import SCORER, TURNS_KEY, InspectTaskSettings
from skillmix.prompts.files import turns_with
from skillmix.runs.import_texts import imported_request
from skillmix.runs.reading.deciding import answer_of

_FILTERED: Final = "content_filter"
_ATTACHMENT: Final = "attachment://"
_LONGEST_FINISH: Final = 60
_ROLES: Final[Mapping[str, Role]] = {role: role for role in get_args(Role)}


@dataclass(frozen=True, slots=True)
class SampleCalls:
    """The calls of one conversation that is over."""

    turns: list[tuple[Request, Outcome]]
    votes: list[tuple[Request, Outcome]]

    @property
    def place(self) -> tuple[str, int]:
        """The combination and the generation of the conversation."""
        key = self.turns[-1][0].key
        return key.combination, key.generation


@dataclass(frozen=True, slots=True)
class SampleReader:
    """Reads the samples of one log."""

    student: str
    grader: str
    settings: InspectTaskSettings
    combinations: Mapping[str, Combination]

    def read(self, sample: object) -> SampleCalls | None:
        """The calls of a sample; None if its conversation is not over, or if somebody declared it invalid."""
        record = mapping(sample)
        combination, generation = self._place(record)
        if record.get("invalidation") is not None:
            return None
        turns = self._turns(record, combination, generation)
        if turns is None:
            return None
        last = turns[-1][1]
        text = answer_of(last.text if isinstance(last, Reply) else None, "imported", len(turns)).text
        return SampleCalls(turns, list(self._votes(record, combination, generation, text)))

    def _place(self, record: Mapping[str, Any]) -> tuple[Combination, int]:
        name, epoch = record.get("id"), record.get("epoch")
        combination = self.combinations.get(name) if isinstance(name, str) else None
        if combination is None:
            raise UserError(f"sample {_shown(name)}: the task does not draw this combination")
        if type(epoch) is not int or not 1 <= epoch <= self.settings.generations:
            raise UserError(f"sample {combination.id}: its epoch is {_shown(epoch)}")
        return combination, epoch - 1

    def _turns(
        self, record: Mapping[str, Any], combination: Combination, generation: int
    ) -> list[tuple[Request, Outcome]] | None:
        """The student's calls; None if the conversation stopped before its last turn without a refusal."""
        where = f"sample {combination.id}, epoch {generation + 1}"
        facts = mapping(record.get("store")).get(TURNS_KEY)
        if not isinstance(facts, list) or not facts:
            return None
        is_filtered = mapping(facts[-1]).get("finish") == _FILTERED
        wanted = turns_with(self.settings.prompts)
        if len(facts) > wanted or (len(facts) < wanted and not is_filtered):
            return None
        messages = _messages(record, where)
        roles = [message.role for message in messages[-2 * len(facts) :]]
        if roles != ["user", "assistant"] * len(facts):
            raise UserError(f"{where}: its messages do not end with {len(facts)} turns of user and assistant")
        first = len(messages) - 2 * len(facts)
        calls: list[tuple[Request, Outcome]] = []
        for number, fact in enumerate(facts):
            place = first + 2 * number + 1
            key = GenerateKey(self.student, combination.id, generation, ONLY_TURN if wanted == 1 else number + 1)
            outcome = _outcome(messages[place].content, mapping(fact))
            calls.append((imported_request(key, tuple(messages[:place])), outcome))
        if not all(isinstance(outcome, Reply) for _, outcome in calls[:-1]):
            raise UserError(f"{where}: it goes on after a refusal")
        return calls

    def _votes(
        self, record: Mapping[str, Any], combination: Combination, generation: int, text: str
    ) -> Iterator[tuple[Request, Outcome]]:
        """The grader's replies on a text; the points in the log do not count, because they are computed again."""
        where = f"sample {combination.id}, epoch {generation + 1}"
        score = mapping(mapping(record.get("scores")).get(SCORER))
        votes = mapping(score.get("metadata")).get("votes", [])
        if not isinstance(votes, list) or (votes and not self.settings.asks_model):
            raise UserError(f"{where}: its votes are not those of the task's grader")
        seen = set()
        for vote in map(mapping, votes):
            number = _number(vote.get("round"), self.settings.rounds)
            attempt = _number(vote.get("attempt"), self.settings.attempts)
            reply = vote.get("reply")
            if number is None or attempt is None:
                shown = f"round {_shown(vote.get('round'))}, attempt {_shown(vote.get('attempt'))}"
                raise UserError(f"{where}: it has a vote of {shown}")
            if (number, attempt) in seen:
                raise UserError(f"{where}: it has two votes of round {number}, attempt {attempt}")
            seen.add((number, attempt))
            if reply is not None and not isinstance(reply, str):
                raise UserError(f"{where}: the reply of round {number} is not a text")
            place = self.student, combination.id, generation
            key = GradeKey(*place, text_id(text), self.grader, number, attempt)
            yield imported_request(key), _outcome(reply, vote)


def _number(value: object, limit: int) -> int | None:
    """The number of a round or an attempt; None if it is none of those that the task has."""
    return value if type(value) is int and 0 <= value < limit else None


def _outcome(text: str | None, facts: Mapping[str, Any]) -> Outcome:
    finish = facts.get("finish")
    if text is None or finish == _FILTERED:
        return CallProblem("final", "content filter")
    known = isinstance(finish, str) and finish != "unknown" and len(finish) <= _LONGEST_FINISH
    return Reply(text, finish if known else None, facts.get("input_tokens"), facts.get("output_tokens"))


def _messages(record: Mapping[str, Any], where: str) -> list[Message]:
    attachments = mapping(record.get("attachments"))
    messages = record.get("messages")
    made = []
    for message in map(mapping, messages if isinstance(messages, list) else []):
        role = _ROLES.get(str(message.get("role")))
        if role is None:
            raise UserError(f"{where}: it has a message of {_shown(message.get('role'))}, which the task never writes")
        made.append(Message(role, _text(message.get("content"), attachments, where)))
    return made


def _text(content: object, attachments: Mapping[str, Any], where: str) -> str:
    """The text of a message; reasoning and other parts are left out."""
    if isinstance(content, list):
        parts = [mapping(part) for part in content]
        return "".join(_text(part.get("text"), attachments, where) for part in parts if part.get("type") == "text")
    if not isinstance(content, str):
        raise UserError(f"{where}: a message has no text")
    if content.startswith(_ATTACHMENT):
        stored = attachments.get(content.removeprefix(_ATTACHMENT))
        if not isinstance(stored, str):
            raise UserError(f"{where}: a message names an attachment that the log does not hold")
        return stored
    return content


def _shown(value: object) -> str:
    """An untrusted value, short enough for an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
