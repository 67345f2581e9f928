"""Hide keys in everything that a server sends, in whatever encoding the server repeats them."""

import base64
import html
import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from skillmix.render import one_line, without_invisible

HIDDEN: Final = "[key]"
_WITHHELD: Final = "[not shown: it repeats a key]"
_KEY_LIKE: Final = re.compile(r"\b(?:sk|key|pk)-[A-Za-z0-9_*\-]{6,}")
_ESCAPE: Final = re.compile(r"(?<!\\)\\++(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")
_SMALL: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
_NOT_WORDS: Final = re.compile(r"[^a-z0-9]+")
_SHORTEST: Final = 4
"""A shorter key is not a secret, and any sentence would contain it."""
_LONGEST_LINE: Final = 300
_LONGEST_READ: Final = 20_000


class _Shape(NamedTuple):
    """One encoding of a key, and the length from which a piece of it counts as part of the key."""

    text: str
    piece: int


class Mask:
    """Hides the keys of all models of this process, since one server may learn the key of another."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._pieces: dict[int, set[str]] = {}
        self._squeezed: list[_Shape] = []
        self._reply_pieces: dict[int, set[str]] = {}
        self._long_words: re.Pattern[str] | None = None

    def add(self, secret: str) -> None:
        """Hide this key from now on."""
        if secret in self._secrets or len(secret) < _SHORTEST:
            return
        self._secrets.add(secret)
        part = min(8, max(_SHORTEST, len(secret) // 2))
        _collect(self._pieces, _shapes(secret, part))
        if _is_unlike_words(secret):
            squeezed = _NOT_WORDS.sub("", secret.translate(_SMALL))
            self._squeezed.append(_Shape(squeezed, min(12, len(squeezed))))
            _collect(self._reply_pieces, _frequent_shapes(secret, min(12, len(secret))))
            self._long_words = re.compile(f"[!-~]{{{min(self._reply_pieces)},}}")

    def line(self, text: str, *, longest: int = _LONGEST_LINE) -> str:
        """A server's text as one printable line, without keys, cut to a length."""
        read = one_line(without_invisible(text[:_LONGEST_READ]))
        hidden = _KEY_LIKE.sub(HIDDEN, _without(read, self._pieces))
        if len(text) > _LONGEST_READ:
            hidden = hidden[:-_LONGEST_LINE]  # the end may be the beginning of a key
        return _WITHHELD if self._is_disguised(hidden) else hidden[:longest]

    def reply(self, text: str) -> str:
        """A model's text with its keys hidden; a key that looks like an ordinary word stays."""
        if self._long_words is None:
            return text
        seen = without_invisible(text)
        if seen != text and (hidden := self.reply(seen)) != seen:
            return hidden
        # A piece of a key is a long word, and checking only long words is cheap.
        words = set(self._long_words.findall(text))
        if not any(_without(word, self._reply_pieces) != word for word in words):
            return text
        return _without(text, self._reply_pieces)

    def _is_disguised(self, text: str) -> bool:
        """Whether a text contains a key once escapes are resolved and separators removed."""
        if not self._squeezed:
            return False
        plain = text
        for _ in range(3):
            plain = html.unescape(unquote(_ESCAPE.sub(_unescaped, plain)))
        bare = plain.replace(HIDDEN, "")
        views = [_NOT_WORDS.sub("", view.translate(_SMALL)) for view in (bare, bare[::-1])]
        return any(
            shape.text[start : start + shape.piece] in view
            for shape in self._squeezed
            for start in range(len(shape.text) - shape.piece + 1)
            for view in views
        )


MASK: Final = Mask()
"""The mask of this process."""


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1] or found[2], 16))


def _is_unlike_words(secret: str) -> bool:
    """Whether no text contains the key by chance, unlike `EMPTY` or `not-needed`, which some servers expect."""
    return len(secret) >= 16 or (len(secret) >= 8 and any(letter.isdigit() for letter in secret))


def _frequent_shapes(secret: str, part: int) -> Iterator[_Shape]:
    """The key itself, in hexadecimal digits, and in base64 at each of the three offsets."""
    raw = secret.encode()
    yield _Shape(secret, part)
    yield _Shape(raw.hex(), 2 * part)
    for offset in range(3):
        padded = bytes(offset) + raw
        skipped = (offset * 8 + 5) // 6
        encoded = base64.b64encode(padded).decode().rstrip("=")[skipped:-1]
        yield _Shape(encoded, part * 4 // 3)
        if "+" in encoded or "/" in encoded:
            yield _Shape(encoded.replace("+", "-").replace("/", "_"), part * 4 // 3)


def _shapes(secret: str, part: int) -> Iterator[_Shape]:
    yield from _frequent_shapes(secret, part)
    yield _Shape(secret[::-1], part)
    if quote(secret, safe="") != secret:
        yield _Shape(quote(secret, safe=""), part)
    yield _Shape("".join(f"%{byte:02x}" for byte in secret.encode()), 3 * part)
    yield _Shape("".join(f"\\u{ord(letter):04x}" for letter in secret), 6 * part)
    yield _Shape("".join(f"\\x{ord(letter):02x}" for letter in secret), 4 * part)
    yield _Shape("".join(f"&#{ord(letter)};" for letter in secret), 5 * part)
    yield _Shape("".join(f"&#x{ord(letter):x};" for letter in secret), 6 * part)


def _collect(pieces: dict[int, set[str]], shapes: Iterable[_Shape]) -> None:
    for shape in shapes:
        small, size = shape.text.translate(_SMALL), shape.piece
        known = pieces.setdefault(size, set())
        known.update(small[start : start + size] for start in range(len(small) - size + 1))


def _without(text: str, pieces: dict[int, set[str]]) -> str:
    """The text with every run of pieces replaced by a marker."""
    small = text.translate(_SMALL)
    covered: list[tuple[int, int]] = []
    for size, known in pieces.items():
        covered += [
            (start, start + size) for start in range(len(small) - size + 1) if small[start : start + size] in known
        ]
    if not covered:
        return text
    kept: list[str] = []
    end = 0
    for start, stop in sorted(covered):
        if start > end or not kept:
            kept.append(text[end:start] + HIDDEN)
        end = max(end, stop)
    return "".join(kept) + text[end:]
