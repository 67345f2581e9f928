"""Convert conversations into examples; a conversation is rejected if it is unclear which tokens must be trained."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np

from skillmix.calls import clean_text
from skillmix.errors import UserError
from skillmix.files import parsed_json
from skillmix.training.data.chat_formats import SealedTokenizer, Template, Turn


@dataclass(frozen=True, slots=True)
class Example:
    """One tokenized conversation, or one chunk of replayed text."""

    key: str
    tokens: np.ndarray
    """A one-dimensional int32 array."""
    is_trained: np.ndarray
    """A boolean array that states for each token whether it is a target of the loss; the first token never is."""
    is_replay: bool


class Data(Protocol):
    """The examples of a training run. They depend only on the step, so a step's number is enough to resume."""

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps after which every conversation has been used once."""
        ...

    def step(self, number: int) -> Sequence[Example]:
        """Return all examples of one optimizer step, counted from 0; they are the same on every rank."""
        ...


TooLong = Literal["drop", "cut", "refuse"]
_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of a training text, with a key for error messages."""

    key: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Examples, and the keys of the conversations that were too long."""

    examples: tuple[Example, ...]
    dropped: tuple[str, ...]
    """The keys of conversations that were left out."""
    cut: tuple[str, ...]
    """The keys of conversations that were truncated at the limit."""


class Encoder:
    """Tokenizes conversations and marks the tokens that the model generates."""

    def __init__(self, tokenizer: Any, *, end_ids: Iterable[int] = (), chat_format: str | None = None) -> None:
        self.tokenizer = tokenizer
        known = {tokenizer.eos_token_id, *end_ids} - {None}
        self._ends: dict[str, int] = {tokenizer.convert_ids_to_tokens(number): number for number in sorted(known)}
        self.template = Template(tokenizer, ends=list(self._ends), name=chat_format)
        own = self.template.format
        marks = (own.first, own.to_earlier, own.between, own.after_user, own.lead, own.end, own.last)
        self.sealed = SealedTokenizer(tokenizer, marks=marks)

    def examples(self, conversations: Sequence[Conversation], *, limit: int, too_long: TooLong) -> Prepared:
        """Convert conversations to examples, applying the rule for long ones; raise an error if none is left."""
        prepared = self.fitting(conversations, limit=limit, too_long=too_long)
        if not prepared.examples:
            raise UserError(
                f"There is nothing to train on: {len(prepared.dropped)} of {len(conversations)} conversations are too "
                "long.",
                hint=f"The limit is {limit} tokens; raise max_tokens.",
            )
        return prepared

    def fitting(self, conversations: Sequence[Conversation], *, limit: int, too_long: TooLong) -> Prepared:
        """Convert conversations to examples, applying the rule for long ones; the result may be empty."""
        kept: list[Example] = []
        dropped: list[str] = []
        cut: list[str] = []
        for example in self._encoded(conversations):
            if len(example.tokens) <= limit:
                kept.append(example)
                continue
            if too_long == "refuse":
                raise UserError(
                    f"{example.key} has {len(example.tokens)} tokens: the limit of {limit} would truncate an answer.",
                    hint="Raise max_tokens, exclude such conversations with too_long: drop, or truncate them "
                    "with too_long: cut.",
                )
            start = replace(example, tokens=example.tokens[:limit], is_trained=example.is_trained[:limit])
            if too_long == "cut" and start.is_trained.any():
                kept.append(start)
                cut.append(example.key)
            else:  # even with `cut`, if truncation leaves no target for the loss
                dropped.append(example.key)
        return Prepared(tuple(kept), tuple(dropped), tuple(cut))

    def _encoded(self, conversations: Sequence[Conversation]) -> Iterator[Example]:
        for start in range(0, len(conversations), _AT_ONCE):
            keys, samples = [], []
            for conversation in conversations[start : start + _AT_ONCE]:
                try:
                    own = self.template.samples(conversation.turns)
                except UserError as error:
                    raise UserError(f"{conversation.key}: {error.message}", hint=error.hint) from None
                samples += own
                keys += [
                    conversation.key if len(own) == 1 else f"{conversation.key}, answer {n + 1}"
                    for n in range(len(own))
                ]
            for key, pieces, encoded in zip(keys, samples, self.sealed.encode(samples), strict=True):
                example = Example(key, encoded.tokens, encoded.is_trained, is_replay=False)
                # The last trained token of each answer must be a token at which generation stops.
                answers = sum(piece.is_trained and not piece.is_mark for piece in pieces)
                is_last = example.is_trained & ~np.append(example.is_trained[1:], False)
                last = [int(token) for token in example.tokens[is_last]]
                if len(last) != answers or not {*self._ends.values()}.issuperset(last):
                    raise UserError(
                        f"{key}: an end token is outside the trained part.",
                        hint="The model would never learn to stop; check the chat template and the tokenizer.",
                    )
                yield example


def read_conversations(file: Path, *, name: str | None = None) -> list[Conversation]:
    """Read the conversations in a JSON Lines file whose rows have `messages`; a key is the file name and line."""
    conversations = []
    if file.exists() and not file.is_file():
        raise UserError(f"{file} is not a regular file.", hint="Name a folder, or a JSON Lines file.")
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    conversations.append(_conversation(line, key=f"{name or file}:{number}"))
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8.", hint="Write it again in UTF-8.") from None
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise UserError(f"{file} cannot be read: {error.strerror}.", hint="Check the path.") from None
        raise UserError(f"There is no file {file}.", hint="A dataset step creates it; run that step first.") from None
    return conversations


def _conversation(line: str, *, key: str) -> Conversation:
    row = parsed_json(line, source=key, hint='A row is {"messages": [...]}.')
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UserError(f"{key} has no messages.", hint='A row is {"messages": [{"role": …, "content": …}, …]}.')
    roles = [message.get("role") for message in messages]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2):
        raise UserError(
            f"{key}: the roles are {', '.join(map(str, roles)) or 'missing'}.",
            hint="The roles of a conversation must be user, assistant, user, assistant, and so on.",
        )
    texts = [message.get("content") for message in messages]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise UserError(f"{key}: a message is empty or not a text.", hint="Leave the row out, or correct it.")
    if any(clean_text(text) != text for text in texts):
        raise UserError(
            f"{key}: a message contains a lone surrogate (half a character).", hint="Correct it, or leave the row out."
        )
    return Conversation(key, tuple(Turn(*pair) for pair in zip(texts[::2], texts[1::2], strict=True)))
