"""The page of `skillmix train --show-mask`."""

from collections.abc import Sequence

Token = tuple[int, str, bool]
_MARK = "█"


def mask_page(step: str, key: str, tokens: Sequence[Token]) -> str:
    """One line for each token: place, number, a mark if it is trained, text."""
    learned = sum(is_trained for *_, is_trained in tokens)
    lines = [f"{step}: {key}: {len(tokens)} tokens, {learned} of them trained ({_MARK})"]
    lines += [
        f"{place:>6} {number:>7} {_MARK if is_trained else ' '} {_shown(text)}"
        for place, (number, text, is_trained) in enumerate(tokens)
    ]
    return "\n".join(lines)


def _shown(text: str) -> str:
    """Quoted, so that blanks are seen and nothing of it acts on a terminal."""
    return (
        "'"
        + "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
        + "'"
    )
