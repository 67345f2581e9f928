"""Determine the format of a chat template by rendering placeholder words and finding where they appear.

A `ChatFormat` contains the fixed strings around the messages, so that a conversation can be rendered in pieces. Each
piece records whether it belongs to the template or to a message, and whether it is trained.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from skillmix.errors import UserError
from skillmix.experiment.train_step import CHAT_TEMPLATES
from skillmix.grading.answers import OPENING, opens_thought, without_thought

Blanks = Literal["keep", "strip", "lstrip", "rstrip"]


class Turn(NamedTuple):
    """A user's message and the answer to it."""

    user: str
    answer: str


class Piece(NamedTuple):
    """A part of a rendered conversation."""

    text: str
    is_mark: bool
    """Whether the piece comes from the template; only such text may contain special tokens."""
    is_trained: bool


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The fixed strings of a rendered conversation, in their order."""

    first: str
    """The text before the first user message: begin token, default system message and mark of the user."""
    to_earlier: str
    """The text between a user message and an answer that is followed by another user message."""
    between: str
    """The text between an answer and the next user message."""
    after_user: str
    """The text after the last user message, up to where the model begins to generate."""
    lead: str
    """The text that the model generates before an answer: whitespace, or an empty thought."""
    end: str
    """The text that the model generates after an answer: the end token, possibly preceded by whitespace."""
    last: str
    """The text after the end token of the last answer."""
    user_blanks: Blanks = "keep"
    answer_blanks: Blanks = "keep"

    @property
    def is_stable(self) -> bool:
        """Return whether an answer stays as the model generated it when another turn follows.

        If so, all answers of a conversation can be trained at once. Templates of models that think remove thoughts from
        earlier answers.
        """
        return self.to_earlier == self.after_user + self.lead and self.between.startswith(self.end)

    def pieces(self, turns: Sequence[Turn]) -> Iterator[Piece]:
        """Yield a conversation as the template renders it: one piece, and then `PIECES_A_TURN` for each turn."""
        yield Piece(self.first, is_mark=True, is_trained=False)
        for number, turn in enumerate(turns, start=1):
            is_last = number == len(turns)
            is_trained = is_last or self.is_stable
            to_answer, lead, end = (self.after_user, self.lead, self.end) if is_trained else (self.to_earlier, "", "")
            yield Piece(_trimmed(turn.user, self.user_blanks), is_mark=False, is_trained=False)
            yield Piece(to_answer, is_mark=True, is_trained=False)
            yield Piece(lead, is_mark=True, is_trained=is_trained)
            yield Piece(_trimmed(turn.answer, self.answer_blanks), is_mark=False, is_trained=is_trained)
            yield Piece(end, is_mark=True, is_trained=is_trained)
            yield Piece(self.last if is_last else self.between.removeprefix(end), is_mark=True, is_trained=False)


PIECES_A_TURN: Final = 6


def _trimmed(text: str, blanks: Blanks) -> str:
    """Return a text without the whitespace that a template removes."""
    return text if blanks == "keep" else str(getattr(text, blanks)())


_WORDS: Final = ("qvxonexvq", "qvxtwoxvq", "qvxthreexvq", "qvxfourxvq")
_BLANKS: Final = " \n "
_NOT_OURS: Final = "Use a checkpoint whose template writes every turn the same way, or name one with format:."


class Template:
    """A tokenizer's chat template, and the format that was determined from it."""

    def __init__(self, tokenizer: Any, *, ends: Sequence[str], name: str | None = None) -> None:
        self._tokenizer = tokenizer
        own_template = tokenizer.chat_template
        if name is not None:
            tokenizer.chat_template = CHAT_TEMPLATES[name]
        elif not own_template:
            raise UserError(
                "The tokenizer has no chat template.", hint=f"Set its format with format: {', '.join(CHAT_TEMPLATES)}."
            )
        self.format = self._find_format(ends)
        if name is not None and own_template:
            tokenizer.chat_template = own_template
            own_format = self._find_format(ends)
            tokenizer.chat_template = CHAT_TEMPLATES[name]
            if own_format != self.format:
                raise UserError(
                    f"The checkpoint has its own chat template, which differs from {name}.",
                    hint="Leave format: out; generation uses the checkpoint's own template.",
                )

    def samples(self, turns: Sequence[Turn]) -> list[list[Piece]]:
        """Split a conversation into samples that train each answer once: the whole, or one part up to each answer.

        Raise an error if the template renders a sample differently, as a whole or up to where the model begins to
        generate.
        """
        samples = []
        parts = [turns]
        if not self.format.is_stable:
            # Such a template may remove line breaks around the last answer only, so remove them here.
            stripped = [Turn(turn.user, turn.answer.strip()) for turn in turns]
            parts = [stripped[: number + 1] for number in range(len(turns))]
        for sample in parts:
            pieces = list(self.format.pieces(sample))
            messages = _messages([text for turn in sample for text in turn])
            if self.render(messages) != "".join(piece.text for piece in pieces):
                raise UserError("the chat template does not produce its declared format", hint=_NOT_OURS)
            for number in range(len(sample)) if self.format.is_stable else (len(sample) - 1,):
                prompt = "".join(piece.text for piece in pieces[: 3 + PIECES_A_TURN * number])
                if self.render(messages[: 2 * number + 1], to_answer=True) != prompt:
                    raise UserError("the chat template renders it differently in parts than as a whole", hint=_NOT_OURS)
            samples.append(pieces)
        return samples

    def render(self, messages: Sequence[dict[str, str]], *, to_answer: bool = False) -> str:
        """Render messages with the template; with `to_answer`, up to where the model begins to generate."""
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=to_answer
            )
        except Exception as error:  # noqa: BLE001  # a template is untrusted code and may raise anything
            raise UserError(f"The chat template cannot render a conversation: {error}", hint=_NOT_OURS) from None
        return text

    def _find_format(self, ends: Sequence[str]) -> ChatFormat:
        """Determine the format by rendering two turns of placeholder words, and the prompt for the second answer."""
        strings, rest = [], self.render(_messages(_WORDS))
        for word in _WORDS:
            if rest.count(word) != 1:
                raise UserError(
                    "The rendered text of the chat template does not contain each message once.", hint=_NOT_OURS
                )
            before, _, rest = rest.partition(word)
            strings.append(before)
        first, to_earlier, between, to_last = strings
        asked = f"{first}{_WORDS[0]}{to_earlier}{_WORDS[1]}{between}{_WORDS[2]}"
        prompt = self.render(_messages(_WORDS[:3]), to_answer=True)
        if not prompt.startswith(asked) or not f"{asked}{to_last}".startswith(prompt):
            raise UserError("The chat template renders differently in parts than as a whole.", hint=_NOT_OURS)
        after_user = prompt.removeprefix(asked)
        lead = to_last.removeprefix(after_user)
        said = without_thought(f"{OPENING if opens_thought(prompt) else ''}{lead}")
        if said is None or said.strip():
            raise UserError(f"The chat template writes {lead!r} before an answer.", hint=_NOT_OURS)
        positions = [(rest.index(end), end) for end in ends if end in rest]
        if not positions:
            raise UserError(
                f"The chat template ends an answer with {rest!r}, where generation would not stop.",
                hint=f"The checkpoint's end tokens are {', '.join(ends) or 'not known'}; check its "
                "generation_config.json.",
            )
        position, end = min(positions)
        if rest[:position].strip():
            raise UserError(f"The chat template writes {rest[:position]!r} after an answer.", hint=_NOT_OURS)
        return ChatFormat(
            first=first,
            to_earlier=to_earlier,
            between=between,
            after_user=after_user,
            lead=lead,
            end=rest[: position + len(end)],
            last=rest[position + len(end) :],
            user_blanks=self._blanks(0),
            answer_blanks=self._blanks(1),
        )

    def _blanks(self, index: int) -> Blanks:
        """Return how the template treats the whitespace around a message."""
        word, words = _WORDS[index], list(_WORDS)
        plain = self.render(_messages(words))
        words[index] = f"{_BLANKS}{word}{_BLANKS}"
        with_blanks = self.render(_messages(words))
        before, after = f"{_BLANKS}{word}", f"{word}{_BLANKS}"
        kept: dict[Blanks, str] = {"keep": f"{before}{_BLANKS}", "strip": word, "lstrip": after, "rstrip": before}
        found = [blanks for blanks, rendered in kept.items() if with_blanks == plain.replace(word, rendered)]
        if not found:
            raise UserError("The chat template changes the whitespace around a message.", hint=_NOT_OURS)
        return found[0]


def _messages(texts: Sequence[str]) -> list[dict[str, str]]:
    """Return the texts as messages that alternate between user and assistant."""
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


_PLANE: Final = 0x100000
_BLOCK: Final = 0x2000
_BLOCKS: Final = 7
_PRIVATE = re.compile(f"[{chr(_PLANE)}-{chr(_PLANE + _BLOCKS * _BLOCK)}]")


class Encoded(NamedTuple):
    """The tokens of a conversation, and whether each is trained."""

    tokens: np.ndarray
    is_trained: np.ndarray


class SealedTokenizer:
    """A tokenizer that never reads text in a message as a special token.

    The template's special tokens are renamed to private characters that no text contains.
    """

    def __init__(self, tokenizer: Any, *, marks: Iterable[str] = ()) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError("The tokenizer is not a fast tokenizer.", hint="Training needs a tokenizer.json.")
        self._document: dict[str, Any] = json.loads(backend.to_str())
        written = "".join(marks)
        self._sealed = [
            token["content"]
            for token in self._document["added_tokens"]
            # Seal added tokens of the template even if they are not declared special, but no whitespace.
            if token["special"] or (token["content"].strip() and token["content"] in written)
        ]
        self._spelling = re.compile("|".join(map(re.escape, sorted(self._sealed, key=len, reverse=True))) or r"(?!)")
        vocabulary = self._document["model"]["vocab"]
        is_by_name = isinstance(vocabulary, dict)
        self._ids = vocabulary if is_by_name else {token: n for n, (token, _) in enumerate(vocabulary)}
        self._is_bytes = '"ByteLevel"' in json.dumps([self._document["pre_tokenizer"], self._document["decoder"]])
        self._begin: list[int] = [token for token in tokenizer("").input_ids[:1] if token == tokenizer.bos_token_id]
        self._block = -1
        self._use_free_block([])

    def encode(self, conversations: Sequence[Sequence[Piece]]) -> list[Encoded]:
        """Tokenize whole conversations; a token is trained if it belongs to a piece that the model generates."""
        self._use_free_block(piece.text for pieces in conversations for piece in pieces if not piece.is_mark)
        texts: list[str] = []
        spans: list[list[list[int]]] = []
        """Start and end of the trained parts of each text; adjacent parts are joined."""
        for pieces in conversations:
            text, own = "", list[list[int]]()
            for piece in pieces:
                start = len(text)
                text += (
                    self._spelling.sub(lambda found: self._names[found[0]], piece.text) if piece.is_mark else piece.text
                )
                if piece.is_trained and len(text) > start:
                    if own and own[-1][1] == start:
                        own[-1][1] = len(text)
                    else:
                        own.append([start, len(text)])
            texts.append(text)
            spans.append(own)
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        return [self._masked(*encoded) for encoded in zip(encodings, texts, spans, strict=True)]

    def plain(self, text: str) -> list[int]:
        """Tokenize a text alone, with a begin token if the tokenizer adds one."""
        self._use_free_block([text])
        tokens: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return [*self._begin, *tokens]

    def _masked(self, encoding: Any, text: str, spans: Sequence[Sequence[int]]) -> Encoded:
        """Return the tokens of a text, none of which crosses the beginning of a trained part."""
        ids: list[int] = encoding.ids
        offsets: list[tuple[int, int]] = encoding.offsets
        for position, _ in spans:
            # Split a token that crosses this position, because no model generates a token across the end of its prompt.
            index = next((n for n, (start, end) in enumerate(offsets) if start < position < end), None)
            if index is not None:
                start, end = offsets[index]
                left, right = self._split(text[start:position]), self._split(text[position:end])
                ids = [*ids[:index], *left, *right, *ids[index + 1 :]]
                borders = [(start, position)] * len(left) + [(position, end)] * len(right)
                offsets = [*offsets[:index], *borders, *offsets[index + 1 :]]
        places = np.asarray(offsets, dtype=np.int64).reshape(-1, 2)
        is_trained = np.zeros(len(ids), dtype=bool)
        for start, end in spans:
            inside = (places[:, 0] >= start) & (places[:, 0] < end)
            if not inside.any() or places[inside, 0].min() != start or places[inside, 1].max() != end:
                raise UserError(
                    "the tokenizer merges the first or last characters of the answer with the text around it",
                    hint="Training cannot mark the answer; choose a model with another tokenizer or chat template.",
                )
            is_trained |= inside
        is_trained[:1] = False
        return Encoded(np.asarray(ids, dtype=np.int32), is_trained)

    def _split(self, text: str) -> list[int]:
        """Split a short text into tokens, each as long as possible."""
        spelled = "".join(BYTE_LETTERS[byte] for byte in text.encode()) if self._is_bytes else text.replace(" ", "▁")
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

    def _use_free_block(self, texts: Iterable[str]) -> None:
        """Rename the special tokens to private characters that none of the texts contains; they keep their ids."""
        used = {
            (ord(match) - _PLANE) // _BLOCK for text in texts if not text.isascii() for match in _PRIVATE.findall(text)
        }
        if self._block >= 0 and self._block not in used:
            return
        free = [block for block in range(_BLOCKS) if block not in used]
        if not free:
            raise UserError("The texts use every private character.", hint="Remove characters above U+100000.")
        from tokenizers import Tokenizer

        self._block = free[0]
        first = _PLANE + self._block * _BLOCK
        names = self._names = {spelling: chr(first + number) for number, spelling in enumerate(self._sealed)}
        document, model = self._document, dict(self._document["model"])
        if isinstance(model["vocab"], dict):
            model["vocab"] = {names.get(token, token): number for token, number in model["vocab"].items()}
        else:
            model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        added = [{**t, "content": names.get(t["content"], t["content"])} for t in document["added_tokens"]]
        # The post-processor would add tokens that the template already includes, and would trim blanks from the
        # offsets.
        renamed = {**document, "added_tokens": added, "model": model, "post_processor": None}
        self._backend = Tokenizer.from_str(json.dumps(renamed))


_PRINTED: Final = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
BYTE_LETTERS: Final = [chr(byte if byte in _PRINTED else 256 + len({*range(byte)} - _PRINTED)) for byte in range(256)]
"""The letter for each byte in byte-level vocabularies: the byte itself if it is printable, or a letter from 256."""
