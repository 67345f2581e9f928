"""Compare names regardless of case, accents, quotes, hyphens and markup."""

import re
import unicodedata
from functools import lru_cache

APOSTROPHES = re.compile(r"['’‘ʼ′`´]")
_ACCENTS = re.compile(r"[\u0300-\u036f]")
INVISIBLE = re.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad]")
_NOT_A_WORD = re.compile(r"[\W_]+")


@lru_cache(maxsize=1 << 13)
def fold_name(text: str) -> str:
    """Reduce a name to lower-case words with single blanks, the form in which names are compared.

    >>> fold_name("**Self-serving Bias**"), fold_name("cliché"), fold_name("one’s (own)")
    ('self serving bias', 'cliche', 'ones own')
    """
    if not text.isascii():
        # Only Latin accents are dropped: in other scripts combining marks distinguish letters.
        text = _ACCENTS.sub("", unicodedata.normalize("NFKD", INVISIBLE.sub("", text)))
        text = unicodedata.normalize("NFKC", text)
    return _NOT_A_WORD.sub(" ", APOSTROPHES.sub("", text.casefold())).strip()


@lru_cache(maxsize=1 << 12)
def before_parenthesis(name: str) -> str:
    """The short form of a skill's name: the part before a parenthesis.

    >>> before_parenthesis("accident (fallacy)")
    'accident'
    """
    return name.partition("(")[0].strip() or name
