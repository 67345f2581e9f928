"""Talk of the task where the text itself was asked for: labels, names of figures, offers of help."""

import re
from typing import Final

from skillmix.verify.passage import Passage

_FIGURES: Final = (
    "alliteration|anaphora|epiphora|epistrophe|simile|syllogism|polysyndeton|asyndeton|chiasmus|antithesis|zeugma"
    "|oxymoron|onomatopoeia|personification|rhetorical question|rhetorical device|figure of speech|conditional clause"
    "|conditional structure|conditional question|affirming conditional|conditional and"
)
_LABELS: Final = (
    "answer|explanation|prompt|topic|topics|skill|skills|definition|instructions|response|question|user|assistant|text"
    f"|example|output|sentence|gratitude|promise|repetition|conditional|metaphor|{_FIGURES}"
)
_WRITING: Final = "text|sentence|passage|paragraph|example|phrase|clause|statement|response"
_TALK_OF_TASK = re.compile(
    r"(?:^|[.!?…]\W{1,4})"
    rf"(?:(?:{_LABELS})(?: \d)?:|(?:sure|certainly|of course)!|sure, (?:i|here|let)\b)"
    r"|\b(?:"
    r"an? (?:ai|language model)\b|language models?\b|ai assistant"
    rf"|(?:this|the|each|a|an|following|given|same|short) (?:{_WRITING})s? (?:above |below |that )?"
    r"(?:uses?|shows?|demonstrates?|illustrates?|contains?|exemplif|is an?(?: perfect)? example|must|has to|should"
    r"|is a perfect|like \")"
    rf"|in this (?:{_WRITING})|writ(?:e|ing) (?:a|an|one|two|the|only|your)(?: \w+){{0,2}} (?:{_WRITING})s?\b"
    rf"|here(?: is|'s| are)(?: \w+){{0,3}} (?:{_WRITING}|prompt)s?\b"
    rf"|(?:{_FIGURES})s? (?:is|are|in this|and)\b|(?:in|uses?|using|shows?|for|of|and|an?|called|the) (?:{_FIGURES})\b"
    r"|example of (?:gratitude|a promise|promise|repetition|thanks)|use of (?:repetition|the word)"
    r"|(?:in|uses?|create) a metaphor"
    r"|skills? (?:is|are|mean|to be|in the|can|has|have|shown?)|(?:these|language|each|all|two) skills?\b|the skills\b"
    r"|(?:the|on the|given) topic (?:is|of)\b|this topic\b|(?:original|same) sentence|by the speaker\b"
    r"|the (?:speaker|writer|author) (?:uses?|promises|shows?|says|thanks)|hope this helps|let me know if you"
    r"|your task|i'd be happy to|i can help you|i (?:cannot|can't) write"
    r")",
    re.IGNORECASE | re.MULTILINE,
)
_CUES: Final = frozenset(
    word + ending
    for word in re.findall(
        r"[a-z]{4,}|ai|use",
        f"{_LABELS} {_WRITING} ai author certainly course happy help hope language speaker task use write writer",
    )
    for ending in ("", "s")
) | {"sure", "let", "writing"}


def talk_of_task(passage: Passage) -> str | None:
    """Find where a text names its own figures or skills, answers the prompt instead of writing, or has labels.

    >>> from skillmix.verify.passage import passage_of
    >>> talk_of_task(passage_of("It is warm. Answer: bread"))
    'Answer'
    """
    # Most texts have none of the words, and the expression is slow.
    if _CUES.isdisjoint([word.lower for word in passage.words]):
        return None
    found = _TALK_OF_TASK.search(passage.lower)
    return passage.text[found.start() : found.end()].strip(_AROUND_TALK) if found else None


_AROUND_TALK: Final = " \t\r\n.,:;!?…\"'“”‘’«»()[]*_#>-–—"
