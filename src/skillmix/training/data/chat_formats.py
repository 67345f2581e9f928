"""Finds out a chat template's format: it renders unmistakable words and looks where they appear.

A `ChatFormat` holds the fixed strings around the messages, so that a conversation can be rendered in pieces and each
piece known as template or message, trained or not.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

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


_PLANE: Final = 0x100000
_BLOCK: Final = 0x2000
_BLOCKS: Final = 7
_PRIVATE = re.compile(f"[{chr(_PLANE)}-{chr(_PLANE + _BLOCKS * _BLOCK)}]")


class Encoded(NamedTuple):
    """The tokens of a conversation, and whether each is trained."""

    tokens: np.ndarray
    is_trained: np.ndarray


class SealedTokenizer:
    """A tokenizer whose special tokens cannot be spelled out in a message."""

    def __init__(self, tokenizer: Any, *, marks: Iterable[str] = ()) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError("The tokenizer is not a fast tokenizer.", hint="Training needs a tokenizer.json.")
        self._document: dict[str, Any] = json.loads(backend.to_str())
        written = "".join(marks)
        self._sealed = [
            token["content"]
            for token in self._document["added_tokens"]
            # Added tokens of the template count even if they are not declared special; blanks are ordinary text.
            if token["special"] or (token["content"].strip() and token["content"] in written)
        ]
        self._spelling = re.compile("|".join(map(re.escape, sorted(self._sealed, key=len, reverse=True))) or r"(?!)")
        self._splitter = _Splitter(self._document)
        empty = tokenizer("").input_ids
        self._begin: list[int] = [token for token in empty[:1] if token == tokenizer.bos_token_id]
        self._block = -1
        self._use_block(0)

    def encode(self, conversations: Sequence[Sequence[Piece]]) -> list[Encoded]:
        """Tokenise whole conversations; a token is trained if it lies in a piece that the model writes."""
        self._avoid(piece.text for pieces in conversations for piece in pieces if not piece.is_mark)
        sealed = [[self._written(piece) for piece in pieces] for pieces in conversations]
        texts = ["".join(parts) for parts in sealed]
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        return [
            self._masked(encoding, text, _spans(pieces, parts))
            for encoding, text, pieces, parts in zip(encodings, texts, conversations, sealed, strict=True)
        ]

    def plain(self, text: str) -> list[int]:
        """Tokenise a text by itself, with a begin token if the tokenizer adds one."""
        self._avoid([text])
        tokens: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return [*self._begin, *tokens]

    def _written(self, piece: Piece) -> str:
        return (
            self._spelling.sub(lambda match: self._by_spelling[match[0]], piece.text) if piece.is_mark else piece.text
        )

    def _masked(self, encoding: Any, text: str, spans: Sequence[tuple[int, int]]) -> Encoded:
        ids: list[int] = encoding.ids
        offsets: list[tuple[int, int]] = encoding.offsets
        for start, _ in spans:
            ids, offsets = self._splitter.split_at(start, text, ids, offsets)
        borders = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
        is_trained = np.zeros(len(ids), dtype=bool)
        for start, end in spans:
            inside = (borders[:, 0] >= start) & (borders[:, 0] < end)
            if not inside.any() or borders[inside, 0].min() != start or borders[inside, 1].max() != end:
                raise UserError(
                    "the tokenizer merges the first or last characters of the answer with the text around it",
                    hint="Training cannot mark the answer; choose a model with another tokenizer or chat template.",
                )
            is_trained |= inside
        is_trained[:1] = False
        return Encoded(np.asarray(ids, dtype=np.int32), is_trained)

    def _avoid(self, texts: Iterable[str]) -> None:
        """Switch to private characters that none of the texts contains."""
        used = {
            (ord(match) - _PLANE) // _BLOCK for text in texts if not text.isascii() for match in _PRIVATE.findall(text)
        }
        if self._block in used:
            free = [block for block in range(_BLOCKS) if block not in used]
            if not free:
                raise UserError("The texts use every private character.", hint="Remove characters above U+100000.")
            self._use_block(free[0])

    def _use_block(self, block: int) -> None:
        from tokenizers import Tokenizer

        self._block = block
        first = _PLANE + block * _BLOCK
        self._by_spelling = {spelling: chr(first + number) for number, spelling in enumerate(self._sealed)}
        self._backend = Tokenizer.from_str(json.dumps(_renamed(self._document, self._by_spelling)))


def _spans(pieces: Sequence[Piece], written: Sequence[str]) -> list[tuple[int, int]]:
    """Start and end of the trained parts; adjacent parts are joined."""
    spans: list[tuple[int, int]] = []
    start = 0
    for piece, text in zip(pieces, written, strict=True):
        end = start + len(text)
        if piece.is_trained and text:
            joined = spans and spans[-1][1] == start
            spans[-1:] = [(spans[-1][0], end)] if joined else [*spans[-1:], (start, end)]
        start = end
    return spans


def _renamed(document: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The tokenizer with new names for some tokens, which keep their numbers."""
    added = [{**token, "content": names.get(token["content"], token["content"])} for token in document["added_tokens"]]
    model = dict(document["model"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    # The post-processor would add tokens that the template writes already, and would trim blanks from the offsets.
    return {**document, "added_tokens": added, "model": model, "post_processor": None}


class _Splitter:
    """Splits a token across the end of a prompt and the beginning of an answer, which no model would generate."""

    def __init__(self, document: dict[str, Any]) -> None:
        vocabulary = document["model"]["vocab"]
        self._ids: dict[str, int] = (
            vocabulary if isinstance(vocabulary, dict) else {token: n for n, (token, _) in enumerate(vocabulary)}
        )
        self._is_bytes = '"ByteLevel"' in json.dumps([document["pre_tokenizer"], document["decoder"]])

    def split_at(
        self, position: int, text: str, ids: list[int], offsets: list[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens and their offsets, split so that none crosses a position of the text."""
        index = next((n for n, (start, end) in enumerate(offsets) if start < position < end), None)
        if index is None:
            return ids, offsets
        start, end = offsets[index]
        left, right = self._tokens(text[start:position]), self._tokens(text[position:end])
        borders = [(start, position)] * len(left) + [(position, end)] * len(right)
        return [*ids[:index], *left, *right, *ids[index + 1 :]], [*offsets[:index], *borders, *offsets[index + 1 :]]

    def _tokens(self, text: str) -> list[int]:
        """Tokens of a short text, the longest possible one first."""
        spelled = "".join(_BYTE_LETTERS[byte] for byte in text.encode()) if self._is_bytes else text.replace(" ", "▁")
        tokens = []
        while spelled:
            length = next((n for n in range(len(spelled), 0, -1) if spelled[:n] in self._ids), None)
            if length is None:
                raise UserError(
                    f"the tokenizer cannot write {text!r} on its own",
                    hint="Its vocabulary lacks these characters; choose a model with another tokenizer.",
                )
            tokens.append(self._ids[spelled[:length]])
            spelled = spelled[length:]
        return tokens


def _byte_letters() -> list[str]:
    """The letter for each byte in byte-level vocabularies: the byte itself if it prints, else a letter from 256 on."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]


_BYTE_LETTERS: Final = _byte_letters()
