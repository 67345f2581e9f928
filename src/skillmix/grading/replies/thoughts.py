"""Tell what a reasoning model thinks from what it replies, for every provider and every local model."""

import re
from typing import Final

CUT_IN_THOUGHT: Final = "cut in its thought"
"""The status of a reply that ends before its thought does."""
OPENING: Final = "<think>\n"
"""Written before a thought whose start the reply itself does not have."""

_NAMES: Final = r"(?:seed:)?(?:think|thinking|thought|reasoning)"
_OPENS: Final = (
    rf"<{_NAMES}>",
    r"\[THINK\]",
    r"◁think▷",
    r"<\|START_THINKING\|>",
    r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)[^<>]{0,99}<\|message\|>",
    r"\Aanalysis(?=[A-Z])",  # gpt-oss without its special tokens
)
_CLOSES: Final = (
    rf"</{_NAMES}>",
    r"\[/THINK\]",
    r"◁/think▷",
    r"<\|END_THINKING\|>",
    r"(?:<\|start\|>assistant)?<\|channel\|>final[^<>]{0,99}<\|message\|>",
    r"assistantfinal",
)
_TAG: Final = re.compile(rf"(?P<opens>{'|'.join(_OPENS)})|(?:{'|'.join(_CLOSES)})")
_OPENS_LAST: Final = re.compile(rf"(?:{'|'.join(_OPENS)})\s*\Z")
_SIGNS: Final = ("hink", "hought", "easoning", "THINK", "<|channel|>", "analysis", "assistantfinal")
_END_OF_TURN: Final = re.compile(r"(?:<\|(?:end|return)\|>\s*)+\Z")


def without_thought(reply: str) -> str | None:
    """A reply without its thoughts; None if it ends in a thought.

    A template may open the thought in the prompt, so all before an end without a start is thought too.

    >>> without_thought("<think>Hm.</think>Answer: x"), without_thought("Hm. Answer: y</think>Answer: x")
    ('Answer: x', 'Answer: x')
    >>> without_thought("<think>Answer: perhaps y")
    """
    if not any(sign in reply for sign in _SIGNS):
        return reply
    said: list[str] = []
    is_thought, start = False, 0
    for tag in _TAG.finditer(reply):
        if tag["opens"] is None:
            if not is_thought:
                said.clear()
            is_thought, start = False, tag.end()
        elif not is_thought:
            said.append(reply[start : tag.start()])
            is_thought = True
    if is_thought:
        return None
    rest = reply[start:]
    return "".join((*said, _END_OF_TURN.sub("", rest) if start else rest))


def opens_thought(prompt: str) -> bool:
    """Whether a prompt ends at the start of a thought, which the reply continues."""
    return _OPENS_LAST.search(prompt) is not None


def is_thought_tag(token: str) -> bool:
    """Whether a special token of a chat format starts or ends a thought."""
    return _TAG.fullmatch(token) is not None
