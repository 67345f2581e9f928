"""Tokenises conversations so that special tokens come from the template alone, whatever messages contain.

In a copy of the tokenizer, every special token is renamed to a private character that no message contains. The
template's strings are written with these characters, so the spelling of a special token in a message is ordinary text.
The whole conversation is still tokenised at once, by the same rules.
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
