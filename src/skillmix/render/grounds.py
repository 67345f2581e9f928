"""Word why a text has or has not earned a point; the terminal and the report use the same words."""

from typing import Final

from skillmix.render.untrusted import one_line

SIGNS: Final = {True: "+", False: "-", None: "?"}
"""An earned point, a denied point and an undecided one."""
CUT: Final = "the token limit cut the reply"


def grounds(
    evidence: str | None, reason: str | None, *, woven: bool | None = None, grader_words: str | None = None
) -> str:
    """The words that show a skill, the reason for a denied point, or both: a text can show a skill that it names.

    A skill that earns its point and is not woven into the topic gets a remark. Where code gives no reason, the words
    of the grader stand for it.

    >>> grounds("as hard as a bench", 'it names the skill "simile"')
    '“as hard as a bench”; it names the skill "simile"'
    >>> grounds(None, None, grader_words="No comparison is made.")
    'the grader: “No comparison is made.”'
    """
    remark = remark_on(reason, woven=woven if evidence else None, grader_words=grader_words)
    return "; ".join([*([f"“{one_line(evidence)}”"] if evidence else []), *([remark] if remark else [])])


def remark_on(reason: str | None, *, woven: bool | None = None, grader_words: str | None = None) -> str | None:
    """What is said about a point beside the words that show the skill; None if there is nothing to say.

    >>> remark_on(None, woven=False)
    'not about the topic'
    """
    if reason:
        return one_line(reason)
    if woven is False:
        return "not about the topic"
    return f"the grader: “{one_line(grader_words)}”" if grader_words else None


def point_line(name: str, point: bool | None, words: str) -> str:
    """A criterion with its sign and its grounds.

    >>> point_line("length", False, "it has 3 sentences where 1 is allowed")
    '- length: it has 3 sentences where 1 is allowed'
    """
    return f"{SIGNS[point]} {name}" + (f": {words}" if words else "")
