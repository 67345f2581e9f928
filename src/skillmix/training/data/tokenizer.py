"""Tokenising so that special tokens come from the template alone, whatever users and answers write.

In a copy of the tokenizer every special token is known by one character of a private plane that no text at hand has.
The template's marks are written with these characters; a special token's own spelling, in what somebody says, is then
text like any other. The whole conversation is still tokenised at once, and by the same rules.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from skillmix.errors import UserError
from skillmix.training.data.chat_formats import Piece

_PLANE: Final = 0x100000
_BLOCK: Final = 0x2000
_BLOCKS: Final = 7
_PRIVATE = re.compile(f"[{chr(_PLANE)}-{chr(_PLANE + _BLOCKS * _BLOCK)}]")


class Encoded(NamedTuple):
    """The tokens of a conversation and which of them are learned."""

    tokens: np.ndarray
    is_trained: np.ndarray


class SealedTokenizer:
    """A tokenizer whose special tokens cannot be written by hand."""

    def __init__(self, tokenizer: Any, *, marks: Iterable[str] = ()) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError("The tokenizer is not a fast one.", hint="Training needs a tokenizer.json.")
        self._document: dict[str, Any] = json.loads(backend.to_str())
        written = "".join(marks)
        self._sealed = [
            token["content"]
            for token in self._document["added_tokens"]
            # Marks that are added without being called special count as well; runs of blanks are ordinary text.
            if token["special"] or (token["content"].strip() and token["content"] in written)
        ]
        self._spelling = re.compile("|".join(map(re.escape, sorted(self._sealed, key=len, reverse=True))) or r"(?!)")
        self._splitter = _Splitter(self._document)
        empty = tokenizer("").input_ids
        self._begin: list[int] = [token for token in empty[:1] if token == tokenizer.bos_token_id]
        self._block = -1
        self._use_block(0)

    def encode(self, conversations: Sequence[Sequence[Piece]]) -> list[Encoded]:
        """Tokenise whole conversations; a token is learned if it lies in what the model writes."""
        self._avoid(piece.text for pieces in conversations for piece in pieces if not piece.is_mark)
        sealed = [[self._written(piece) for piece in pieces] for pieces in conversations]
        texts = ["".join(parts) for parts in sealed]
        found = self._backend.encode_batch(texts, add_special_tokens=False)
        return [
            self._masked(encoding, text, _spans(pieces, parts))
            for encoding, text, pieces, parts in zip(found, texts, conversations, sealed, strict=True)
        ]

    def plain(self, text: str) -> list[int]:
        """A text on its own, after the begin token if the tokenizer puts one there."""
        self._avoid([text])
        found: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return [*self._begin, *found]

    def _written(self, piece: Piece) -> str:
        return (
            self._spelling.sub(lambda match: self._by_spelling[match[0]], piece.text) if piece.is_mark else piece.text
        )

    def _masked(self, encoding: Any, text: str, spans: Sequence[tuple[int, int]]) -> Encoded:
        ids: list[int] = encoding.ids
        offsets: list[tuple[int, int]] = encoding.offsets
        for start, _ in spans:
            ids, offsets = self._splitter.split_at(start, text, ids, offsets)
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

    def _avoid(self, texts: Iterable[str]) -> None:
        """Use characters that none of the texts has."""
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
    """Where the parts that are learned stand; neighbours are one."""
    spans: list[tuple[int, int]] = []
    place = 0
    for piece, text in zip(pieces, written, strict=True):
        end = place + len(text)
        if piece.is_trained and text:
            joined = spans and spans[-1][1] == place
            spans[-1:] = [(spans[-1][0], end)] if joined else [*spans[-1:], (place, end)]
        place = end
    return spans


def _renamed(document: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The tokenizer with other names for some tokens, each with the number it had."""
    added = [{**token, "content": names.get(token["content"], token["content"])} for token in document["added_tokens"]]
    model = dict(document["model"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    # The post-processor adds what the template writes already, and cuts blanks off the offsets.
    return {**document, "added_tokens": added, "model": model, "post_processor": None}


class _Splitter:
    """Divides a token that holds the end of a prompt and the beginning of an answer: no model would write it."""

    def __init__(self, document: dict[str, Any]) -> None:
        vocabulary = document["model"]["vocab"]
        self._ids: dict[str, int] = (
            vocabulary if isinstance(vocabulary, dict) else {token: n for n, (token, _) in enumerate(vocabulary)}
        )
        self._is_bytes = '"ByteLevel"' in json.dumps([document["pre_tokenizer"], document["decoder"]])

    def split_at(
        self, place: int, text: str, ids: list[int], offsets: list[tuple[int, int]]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokens with a border at a place of the text."""
        at = next((n for n, (start, end) in enumerate(offsets) if start < place < end), None)
        if at is None:
            return ids, offsets
        start, end = offsets[at]
        left, right = self._tokens(text[start:place]), self._tokens(text[place:end])
        borders = [(start, place)] * len(left) + [(place, end)] * len(right)
        return [*ids[:at], *left, *right, *ids[at + 1 :]], [*offsets[:at], *borders, *offsets[at + 1 :]]

    def _tokens(self, text: str) -> list[int]:
        """A short text by its longest tokens."""
        spelled = "".join(_BYTE_LETTERS[byte] for byte in text.encode()) if self._is_bytes else text.replace(" ", "▁")
        found = []
        while spelled:
            length = next((n for n in range(len(spelled), 0, -1) if spelled[:n] in self._ids), None)
            if length is None:
                raise UserError(
                    f"the tokenizer cannot write {text!r} on its own",
                    hint="Its vocabulary lacks these characters; choose a model with another tokenizer.",
                )
            found.append(self._ids[spelled[:length]])
            spelled = spelled[length:]
        return found


def _byte_letters() -> list[str]:
    """The letter by which byte-level vocabularies spell each byte: itself if it prints, else one from 256 on."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(256)]


_BYTE_LETTERS: Final = _byte_letters()
