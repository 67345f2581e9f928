"""Finds out a chat template's format: it renders unmistakable words and looks where they appear.

A `ChatFormat` holds the fixed strings around the messages, so that a conversation can be rendered in pieces and each
piece known as template or message, trained or not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from skillmix.errors import UserError
from skillmix.experiment.train_step import CHAT_TEMPLATES

Blanks = Literal["keep", "strip", "lstrip", "rstrip"]


class Turn(NamedTuple):
    """A user's message and the answer to it."""

    user: str
    answer: str


class Piece(NamedTuple):
    """A part of a rendered conversation."""

    text: str
    is_mark: bool
    """Whether the template wrote it; only such text may contain special tokens."""
    is_trained: bool


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The fixed strings of a rendered conversation, in their order."""

    first: str
    """Before the first user message: begin token, default system message, mark of the user."""
    after_user: str
    """After a user message, up to where the model begins to write."""
    lead: str
    """Blanks that the model writes before an answer."""
    end: str
    """Written by the model after an answer: the end token, and blanks before it."""
    between: str
    """From an answer's end token to the next user message."""
    last: str
    """After the end token of the last answer."""
    user_blanks: Blanks = "keep"
    answer_blanks: Blanks = "keep"

    def pieces(self, turns: Sequence[Turn]) -> Iterator[Piece]:
        """A conversation as the template renders it, piece by piece."""
        before = self.first
        for turn in turns:
            yield Piece(before, is_mark=True, is_trained=False)
            yield Piece(trimmed(turn.user, self.user_blanks), is_mark=False, is_trained=False)
            yield Piece(self.after_user, is_mark=True, is_trained=False)
            yield Piece(self.lead, is_mark=True, is_trained=True)
            yield Piece(trimmed(turn.answer, self.answer_blanks), is_mark=False, is_trained=True)
            yield Piece(self.end, is_mark=True, is_trained=True)
            before = self.between
        yield Piece(self.last, is_mark=True, is_trained=False)

    def prompt(self, turns: Sequence[Turn], user: str) -> str:
        """The prompt for the answer to a user message that follows some turns."""
        before = "".join(piece.text for piece in self.pieces(turns)).removesuffix(self.last) if turns else ""
        opening = self.between if turns else self.first
        return f"{before}{opening}{trimmed(user, self.user_blanks)}{self.after_user}"


def trimmed(text: str, blanks: Blanks) -> str:
    """A text without the blanks that a template removes."""
    match blanks:
        case "keep":
            return text
        case "strip":
            return text.strip()
        case "lstrip":
            return text.lstrip()
        case "rstrip":
            return text.rstrip()


_WORDS: Final = ("qvxonexvq", "qvxtwoxvq", "qvxthreexvq", "qvxfourxvq")
_BLANKS: Final = " \n "
_NOT_OURS: Final = "Use a checkpoint whose template writes every turn the same way, or name one with format:."


class Template:
    """A tokenizer's chat template and its format."""

    def __init__(self, tokenizer: Any, *, ends: Sequence[str], name: str | None = None) -> None:
        self._tokenizer = tokenizer
        own_template = tokenizer.chat_template
        if name is not None:
            tokenizer.chat_template = CHAT_TEMPLATES[name]
        elif not own_template:
            raise UserError(
                "The tokenizer has no chat template.", hint=f"Name its format with format: {', '.join(CHAT_TEMPLATES)}."
            )
        self.format = self._find_format(ends)
        if name is not None and own_template and self._differs(own_template, ends):
            raise UserError(
                f"The checkpoint has its own chat template, and it is not that of {name}.",
                hint="Leave format: out; generation uses the checkpoint's own template.",
            )

    def check(self, turns: Sequence[Turn]) -> None:
        """Refuse a conversation that the template renders differently than the format, whole or up to an answer."""
        messages = [message for turn in turns for message in _messages(turn)]
        whole = "".join(piece.text for piece in self.format.pieces(turns))
        if self.render(messages) != whole:
            raise UserError("the chat template renders it differently than its format says", hint=_NOT_OURS)
        for number, turn in enumerate(turns):
            prompt = self.render(messages[: 2 * number + 1], to_answer=True)
            if prompt != self.format.prompt(turns[:number], turn.user) or not whole.startswith(prompt):
                raise UserError("the chat template renders it differently in parts than as a whole", hint=_NOT_OURS)

    def render(self, messages: Sequence[dict[str, str]], *, to_answer: bool = False) -> str:
        """Render messages with the template; with `to_answer`, up to where the model begins to write."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=to_answer
            )
        except Exception as error:  # noqa: BLE001  # a template is foreign code and may raise anything
            raise UserError(f"The chat template cannot render a conversation: {error}", hint=_NOT_OURS) from None
        return text

    def _differs(self, own_template: str, ends: Sequence[str]) -> bool:
        named_template, self._tokenizer.chat_template = self._tokenizer.chat_template, own_template
        try:
            return self._find_format(ends) != self.format
        finally:
            self._tokenizer.chat_template = named_template

    def _find_format(self, ends: Sequence[str]) -> ChatFormat:
        user = _WORDS[0]
        messages = _as_messages(_WORDS)
        first, to_answer, between, to_answer_again, rest = _around(self.render(messages))
        prompt = self.render(messages[:1], to_answer=True)
        if not f"{first}{user}{to_answer}".startswith(prompt) or to_answer_again != to_answer:
            raise UserError("The chat template renders differently in parts than as a whole.", hint=_NOT_OURS)
        after_user = prompt.removeprefix(f"{first}{user}")
        lead = to_answer.removeprefix(after_user)
        if lead.strip():
            raise UserError(f"The chat template writes {lead!r} before an answer.", hint=_NOT_OURS)
        end = _end_of(rest, ends)
        if not between.startswith(end):
            raise UserError("The chat template ends answers in different ways.", hint=_NOT_OURS)
        return ChatFormat(
            first=first,
            after_user=after_user,
            lead=lead,
            end=end,
            between=between.removeprefix(end),
            last=rest.removeprefix(end),
            user_blanks=self._blanks(0),
            answer_blanks=self._blanks(1),
        )

    def _blanks(self, index: int) -> Blanks:
        """What the template does with the blanks around a message."""
        words = list(_WORDS)
        plain = self.render(_as_messages(words))
        words[index] = f"{_BLANKS}{words[index]}{_BLANKS}"
        with_blanks = self.render(_as_messages(words))
        kept: dict[str, Blanks] = {
            f"{_BLANKS}{_WORDS[index]}{_BLANKS}": "keep",
            _WORDS[index]: "strip",
            f"{_WORDS[index]}{_BLANKS}": "lstrip",
            f"{_BLANKS}{_WORDS[index]}": "rstrip",
        }
        for rendered, blanks in kept.items():
            if with_blanks == plain.replace(_WORDS[index], rendered):
                return blanks
        raise UserError("The chat template changes the blanks around a message.", hint=_NOT_OURS)


def _messages(turn: Turn) -> tuple[dict[str, str], dict[str, str]]:
    return {"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}


def _as_messages(words: Sequence[str]) -> list[dict[str, str]]:
    return [*_messages(Turn(words[0], words[1])), *_messages(Turn(words[2], words[3]))]


def _around(rendered: str) -> list[str]:
    """The strings before, between and after the four words."""
    strings, rest = [], rendered
    for word in _WORDS:
        if rendered.count(word) != 1 or word not in rest:
            raise UserError(
                "The rendered text of the chat template does not contain each message once.", hint=_NOT_OURS
            )
        before, _, rest = rest.partition(word)
        strings.append(before)
    return [*strings, rest]


def _end_of(rest: str, ends: Sequence[str]) -> str:
    """The string after an answer, up to its end token; only blanks may precede the end token."""
    positions = [(rest.index(end), end) for end in ends if end in rest]
    if not positions:
        raise UserError(
            f"The chat template ends an answer with {rest!r}, where generation would not stop.",
            hint=f"The checkpoint's end tokens are {', '.join(ends) or 'not known'}; check its generation_config.json.",
        )
    position, end = min(positions)
    if rest[:position].strip():
        raise UserError(f"The chat template writes {rest[:position]!r} after an answer.", hint=_NOT_OURS)
    return rest[: position + len(end)]
