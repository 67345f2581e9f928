"""Split labels and names into content words, and compare words regardless of their endings.

The lists below hold English words. A word of another language is always a content word.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Final

from skillmix.prompts.rubric import label_forms


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FILLERS: Final = _words("""
    a an the of to in on for with by at as and or is are was were be been being it its this that there has have had
    having does do about into from
    student students text answer response piece writing passage author
    show shows shown showing use uses used using usage utilizes utilises utilized utilised
    illustrate illustrates illustrated illustrating illustration illustrations
    demonstrate demonstrates demonstrated demonstrating demonstration
    contain contains containing include includes included inclusion exhibit exhibits exhibited display displays
    displayed employ employs employed feature features incorporate incorporates incorporated
    present presents presented presence application apply applies applied
    evidence evident example examples instance exemplify exemplifies exemplified identify identified
    clear clearly correct correctly proper properly accurate accurately effective effectively successful successfully
    appropriate appropriately explicit explicitly good well strong obvious obviously definitely indeed fully
    skill skills criterion criteria item items requirement requirements required requested rubric point points
    number language expression expressions yes ok okay device technique tactic figure method strategy element component
    attempt quality execution other others
    one ones own two three four five six first second third ii iii iv vi vii viii ix
""")
"""Words that say nothing about which criterion a label names."""
UNFINISHED: Final = _words("a an the of to in on for with by at as and or about into from")
"""Words with which no label ends unless it is cut off."""
NEGATIONS: Final = _words("""
    no not non without lack lacks lacking absence absent missing never none fail fails failed avoid avoids
    avoided avoidance instead rather unlike incorrect incorrectly wrong wrongly off except neither nor
    cannot doesnt isnt dont didnt
""")
SUMMARIES: Final = _words("""
    total totals overall sum subtotal final score scores grade grades point points earned awarded received given result
    results mark marks number of the out max maximum possible available average mean percentage percent aggregate in all
    and full for rating verdict
""")
"""Words of rows that sum up a grading, such as "Total points earned"."""
KINDS: Final = _words("""
    ability abilities ad appeal argument arguments argumentum bias biases claim clause effect effects error errors
    fallacy fallacies modus question questions reason reasoning rule sentence sentences statement syllogism syllogisms
    thing thinking time verb verbs way word words
""")
"""Nouns for a kind of skill; many skills share them, so they identify none."""
ADJECTIVES: Final = _words("cognitive informal linguistic literary logical pragmatic rhetorical semantic syntactic")
"""Adjectives that also describe qualities of a text, as in "logical flow"."""
OTHER_QUALITIES: Final = _words("""
    accuracy combined combination count creativity creative depth effectiveness engagement flow fluency format
    formatting grammar impact integration novelty organization organisation originality persuasiveness polish precision
    punctuation quality spelling structure style tone variety vocabulary voice
""")
"""Qualities of a text that graders add rows for although the prompt does not request them."""
SENSE_WORDS: Final = _words("""
    sense sensemaking sensible sensibility sensical coherent coherence coherency coherently comprehensible
    comprehensibility understandable understandability intelligible intelligibility meaningful
""")
BESIDE_SENSE: Final = _words("""
    make makes making made clarity overall logical logic logically flow flows reads read readable readability general
    generally easy easily understand understood follow followed grammatical grammar fluent fluency formed cohesion
    cohesive internal whole natural naturally complete hang hangs reasonable reasonably together structure semantic
    semantically
""")
"""Words that graders put next to a word for sense."""
TOPIC_WORDS: Final = _words("""
    topic topics topical topicality relevance relevant relevancy subject theme thematic pertinent pertinence pertains
    pertaining pertain context contextual relates related relating relation
""")
BESIDE_TOPIC: Final = _words("""
    fit fits fitting focus focused focuses matter adherence adheres adhere alignment aligned aligns addressed addresses
    given chosen assigned specified connection connected connects follow follows stay stays staying keep keeps kept
    remain remains sticks match matches set overall specific within prompt main area content mention
    mentions mentioned maintain maintains maintained concern concerns deals dealing discuss discusses discussed covers
    covered treats stayed sticking weak weakly partial partially partly mostly somewhat fine barely met satisfied
    fulfilled achieved
""")
"""Words that graders put next to a word for the topic."""
LENGTH_WORDS: Final = _words("sentence sentences length limit limits concise conciseness brevity brief short")

_TAG = re.compile(r"</?[A-Za-z]{1,10} ?/?>")
_SUPERSCRIPTS = re.compile(r"[⁰¹²³⁴-⁹]")


@lru_cache(maxsize=1 << 12)
def label_words(label: str) -> tuple[str, ...]:
    """The folded words of a label without numbering, worth and tags."""
    return tuple(label_forms(_SUPERSCRIPTS.sub("", _TAG.sub(" ", label))).plain[-1].split())


def content_words(words: Iterable[str]) -> tuple[str, ...]:
    """The words that say which criterion a label names; each word once.

    >>> content_words(label_words("2. Uses a loaded question, clearly"))
    ('loaded', 'question')
    """
    return tuple(dict.fromkeys(w for w in words if w not in FILLERS and len(w) > 1 and not w.isdecimal()))


def same_word(one: str, other: str) -> bool:
    """Whether two words are equal but for their endings.

    >>> same_word("metaphor", "metaphorical"), same_word("metaphor", "metaphysics")
    (True, False)
    """
    if one == other:
        return True
    if one[:_SHORTEST] != other[:_SHORTEST]:
        return False
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    endings = _INFLECTIONS if common > _SHORTEST else _INFLECTIONS_OF_SHORT_WORDS
    if one[common:] in endings and other[common:] in endings:
        return True
    # The first letters of two endings may be equal: "syllogism" and "syllogistic" share an "s" after their stem.
    return any(
        one[cut:] in _ENDINGS and other[cut:] in _ENDINGS
        for cut in range(max(_SHORTEST_STEM, common - _MOST_IN_COMMON), common + 1)
    )


def shared_words(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """The words that also occur in the other list, regardless of endings."""
    return [word for word in words if any(same_word(word, other) for other in others)]


def have_the_same_words(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists have the same words in any order, regardless of endings."""
    return (
        len(one) == len(other) > 0
        and len(shared_words(one, other)) == len(one)
        and len(shared_words(other, one)) == len(one)
    )


_SHORTEST: Final = 3
_SHORTEST_STEM: Final = 5
_MOST_IN_COMMON: Final = 3
"""Letters that two different endings may have in common."""
_INFLECTIONS: Final = frozenset({"", "s", "es", "ed", "ing", "er", "ers"})
_INFLECTIONS_OF_SHORT_WORDS: Final = frozenset({"", "s", "ing"})
_ENDINGS: Final = _INFLECTIONS | _words("""
    a d e y ies al ally ial ic ical ically ics ism isms ist istic ion ions ional ionally ation ations ational ative
    ating ate ates ated ition ive ively ly ity or ors ous ously t ts ce ent ence ant ance ment able ible ize ized izing
    ise ised ising ization isation
""")
