"""From a chat template to a format: by rendering words that cannot be mistaken and looking where they went."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from skillmix.errors import UserError
from skillmix.experiment.chat_templates import CHAT_TEMPLATES

Blanks = Literal["keep", "strip", "lstrip", "rstrip"]


class Turn(NamedTuple):
    """What a user says and what is answered."""

    said: str
    answer: str


class Piece(NamedTuple):
    """A part of a rendered conversation."""

    text: str
    is_mark: bool
    """Whether the template wrote it: only there may special tokens stand."""
    is_trained: bool


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The fixed parts of a rendered conversation, in their order: each turn is asked, then answered."""

    first: str
    """Before the first user's words: begin token, a default system message, the mark of a user."""
    asked: str
    """After a user's words, up to where the model begins to write."""
    lead: str
    """Blanks that the model writes before the answer's own words."""
    end: str
    """What it writes after them: the end token, and blanks before it."""
    between: str
    """From an answer's end token to the next user's words."""
    last: str
    """After the last answer's end token."""
    user_blanks: Blanks = "keep"
    answer_blanks: Blanks = "keep"

    def pieces(self, turns: Sequence[Turn]) -> Iterator[Piece]:
        """A conversation as the template renders it, part by part."""
        before = self.first
        for turn in turns:
            yield Piece(before, is_mark=True, is_trained=False)
            yield Piece(trimmed(turn.said, self.user_blanks), is_mark=False, is_trained=False)
            yield Piece(self.asked, is_mark=True, is_trained=False)
            yield Piece(self.lead, is_mark=True, is_trained=True)
            yield Piece(trimmed(turn.answer, self.answer_blanks), is_mark=False, is_trained=True)
            yield Piece(self.end, is_mark=True, is_trained=True)
            before = self.between
        yield Piece(self.last, is_mark=True, is_trained=False)

    def prompt(self, turns: Sequence[Turn], said: str) -> str:
        """What a model is given to answer the next user's words, after some turns."""
        before = "".join(piece.text for piece in self.pieces(turns)).removesuffix(self.last) if turns else ""
        opening = self.between if turns else self.first
        return f"{before}{opening}{trimmed(said, self.user_blanks)}{self.asked}"


def trimmed(text: str, blanks: Blanks) -> str:
    """A text without the blanks that a template takes away."""
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
    """A tokenizer's chat template and the format that was found in it."""

    def __init__(self, tokenizer: Any, *, ends: Sequence[str], name: str | None = None) -> None:
        self._tokenizer = tokenizer
        own = tokenizer.chat_template
        if name is not None:
            tokenizer.chat_template = CHAT_TEMPLATES[name]
        elif not own:
            raise UserError(
                "The tokenizer has no chat template.", hint=f"Name its format with format: {', '.join(CHAT_TEMPLATES)}."
            )
        self.format = self._found(ends)
        if name is not None and own and self._differs(own, ends):
            raise UserError(
                f"The checkpoint has a chat template of its own, and it is not that of {name}.",
                hint="Leave format: out; the checkpoint's own is what it is asked with later.",
            )

    def check(self, turns: Sequence[Turn]) -> None:
        """Refuse a conversation that the template itself renders otherwise, as a whole or up to one of its answers."""
        messages = [message for turn in turns for message in _messages(turn)]
        whole = "".join(piece.text for piece in self.format.pieces(turns))
        if self.render(messages) != whole:
            raise UserError("the chat template renders it differently than its format says", hint=_NOT_OURS)
        for number, turn in enumerate(turns):
            asked = self.render(messages[: 2 * number + 1], to_answer=True)
            if asked != self.format.prompt(turns[:number], turn.said) or not whole.startswith(asked):
                raise UserError("the chat template renders it differently in parts than whole", hint=_NOT_OURS)

    def render(self, messages: Sequence[dict[str, str]], *, to_answer: bool = False) -> str:
        """What the template makes of messages."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=to_answer
            )
        except Exception as error:  # noqa: BLE001  # a template is a stranger's program and may raise anything
            raise UserError(f"The chat template cannot render a conversation: {error}", hint=_NOT_OURS) from None
        return text

    def _differs(self, own: str, ends: Sequence[str]) -> bool:
        ours, self._tokenizer.chat_template = self._tokenizer.chat_template, own
        try:
            return self._found(ends) != self.format
        finally:
            self._tokenizer.chat_template = ours

    def _found(self, ends: Sequence[str]) -> ChatFormat:
        said, answer, said_again, answer_again = _WORDS
        turns = (Turn(said, answer), Turn(said_again, answer_again))
        messages = [message for turn in turns for message in _messages(turn)]
        first, to_answer, between, to_answer_again, rest = _around(self.render(messages))
        prompt = self.render(messages[:1], to_answer=True)
        if not f"{first}{said}{to_answer}".startswith(prompt) or to_answer_again != to_answer:
            raise UserError("The chat template renders differently in parts than whole.", hint=_NOT_OURS)
        asked = prompt.removeprefix(f"{first}{said}")
        lead = to_answer.removeprefix(asked)
        if lead.strip():
            raise UserError(f"The chat template writes {lead!r} before an answer.", hint=_NOT_OURS)
        end = _end_of(rest, ends)
        if not between.startswith(end):
            raise UserError("The chat template ends answers in different ways.", hint=_NOT_OURS)
        return ChatFormat(
            first=first,
            asked=asked,
            lead=lead,
            end=end,
            between=between.removeprefix(end),
            last=rest.removeprefix(end),
            user_blanks=self._blanks(0),
            answer_blanks=self._blanks(1),
        )

    def _blanks(self, place: int) -> Blanks:
        """What becomes of the blanks around a message."""
        words = list(_WORDS)
        plain = self.render(_as_messages(words))
        words[place] = f"{_BLANKS}{words[place]}{_BLANKS}"
        with_blanks = self.render(_as_messages(words))
        kept: dict[str, Blanks] = {
            f"{_BLANKS}{_WORDS[place]}{_BLANKS}": "keep",
            _WORDS[place]: "strip",
            f"{_WORDS[place]}{_BLANKS}": "lstrip",
            f"{_BLANKS}{_WORDS[place]}": "rstrip",
        }
        for rendered, blanks in kept.items():
            if with_blanks == plain.replace(_WORDS[place], rendered):
                return blanks
        raise UserError("The chat template changes the blanks around a message.", hint=_NOT_OURS)


def _messages(turn: Turn) -> tuple[dict[str, str], dict[str, str]]:
    return {"role": "user", "content": turn.said}, {"role": "assistant", "content": turn.answer}


def _as_messages(words: Sequence[str]) -> list[dict[str, str]]:
    return [*_messages(Turn(words[0], words[1])), *_messages(Turn(words[2], words[3]))]


def _around(rendered: str) -> list[str]:
    """What stands before, between and behind the four words."""
    found, rest = [], rendered
    for word in _WORDS:
        if rendered.count(word) != 1 or word not in rest:
            raise UserError("The answers cannot be found in what the chat template renders.", hint=_NOT_OURS)
        before, _, rest = rest.partition(word)
        found.append(before)
    return [*found, rest]


def _end_of(rest: str, ends: Sequence[str]) -> str:
    """What stands behind an answer, up to its end token, which only blanks may precede."""
    places = [(rest.index(end), end) for end in ends if end in rest]
    if not places:
        raise UserError(
            f"The chat template ends an answer with {rest!r}, where generation would not stop.",
            hint=f"The checkpoint's end tokens are {', '.join(ends) or 'not known'}; check its generation_config.json.",
        )
    place, end = min(places)
    if rest[:place].strip():
        raise UserError(f"The chat template writes {rest[:place]!r} after an answer.", hint=_NOT_OURS)
    return rest[: place + len(end)]
