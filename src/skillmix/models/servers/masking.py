"""Hide keys in the output of servers, even if encoded in base64 or interspersed with invisible characters."""

import base64
import re
from typing import Final

from skillmix.render import one_line, without_invisible

HIDDEN: Final = "[key]"
_KEY_LIKE: Final = re.compile(r"\b(?:sk|key|pk)-[A-Za-z0-9_*\-]{6,}")
"""Matches text that looks like a key, perhaps one that the server has partly masked."""
_LONGEST_LINE: Final = 300
_LONGEST_READ: Final = 20_000


class Mask:
    """Hides the keys of all models in this process, because one server may learn another server's key."""

    def __init__(self) -> None:
        self._forms: list[str] = []
        self._forms_in_replies: list[str] = []

    def add(self, secret: str) -> None:
        """Hide this key from now on."""
        if secret in self._forms or len(secret) < 4:  # text could contain a shorter secret by chance
            return
        forms = [secret]
        for offset in range(3):  # the bytes before a key shift its base64
            encoded = base64.b64encode(bytes(offset) + secret.encode()).decode().rstrip("=")
            own = encoded[(offset * 8 + 5) // 6 : -1]  # the ends depend on the bytes before and after the key
            forms += dict.fromkeys((own, own.replace("+", "-").replace("/", "_")))
        self._forms += forms
        # Some servers expect a word such as EMPTY or not-needed as a key, and text may contain that word by chance.
        if len(secret) >= 16 or (len(secret) >= 8 and any(letter.isdigit() for letter in secret)):
            self._forms_in_replies += forms

    def line(self, text: str, *, longest: int = _LONGEST_LINE) -> str:
        """Format a server's text as one printable line without keys, shortened to `longest` characters."""
        hidden = _KEY_LIKE.sub(HIDDEN, _without(one_line(without_invisible(text[:_LONGEST_READ])), self._forms))
        if len(text) > _LONGEST_READ:
            hidden = hidden[:-_LONGEST_LINE]  # the text may have been cut inside a key
        return hidden[:longest]

    def reply(self, text: str) -> str:
        """Hide the keys in a model's text, except keys that look like an ordinary word."""
        if not self._forms_in_replies:
            return text
        seen = without_invisible(text)
        hidden = _without(seen, self._forms_in_replies)
        return hidden if hidden != seen else text


def _without(text: str, forms: list[str]) -> str:
    """Mask these forms, ignoring case, because a server may have changed the case of a header."""
    small = text.lower()
    for form in forms:
        if form.lower() in small:
            text = re.sub(re.escape(form), HIDDEN, text, flags=re.IGNORECASE)
    return text


MASK: Final = Mask()
