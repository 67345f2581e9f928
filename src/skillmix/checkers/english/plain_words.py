"""Words of grammar, and the parts into which marks cut a text, as several checkers need them."""

import re
from typing import Final

from skillmix.checkers.passage import Span, Word, Words


def word_set(words: str) -> frozenset[str]:
    """The words of a text with blanks between."""
    return frozenset(words.split())


CONJUNCTIONS: Final = frozenset(("and", "or", "but"))
ARTICLES: Final = frozenset(("a", "an", "the"))
PERSONS: Final = word_set(
    "i you he she it we they me him her us them my your his its our their mine yours hers ours theirs myself"
    " yourself himself herself itself ourselves themselves thou thee thy"
)
PREPOSITIONS: Final = word_set(
    "to of in on at by for from with into onto over under through across along behind beside beneath between beyond"
    " above below near around after before during without within upon against among inside outside past toward"
)
SUBJECTS: Final = word_set("i he she we they")
LITTLE: Final = (
    CONJUNCTIONS
    | ARTICLES
    | PERSONS
    | word_set(
        "this that these those who whom whose which what where when why how there here then than as if so nor yet not"
        " no to of in on at by for from with into onto over under up down out off about after before between through"
        " during without within upon against among above below near since until till while because although though"
        " unless whether is am are was were be been being do does did done doing have has had having can could will"
        " would shall should may might must ought isn't aren't wasn't weren't don't doesn't didn't haven't hasn't"
        " hadn't can't couldn't won't wouldn't shan't shouldn't mustn't i'm i've i'll i'd you're you've you'll you'd"
        " he's he'll he'd she's she'll she'd it's it'll it'd we're we've we'll we'd they're they've they'll they'd"
        " that's there's what's who's let's all any each every some such same own both few more most much many other"
        " another very too just only also even still again ever never once thus hence therefore however mr mrs ms dr st"
    )
)
"""Words that carry grammar rather than content."""
GRAMMAR: Final = LITTLE - word_set("all none never once more most much many few same other another again still")
"""Those of them that nobody repeats for effect."""

_MARK = re.compile(r"[.,;:!?…()\[\]\"“”«»–—]|--| - ")


def can_echo(word: str) -> bool:
    """Whether a word in small letters is heard again when it comes again: no word of grammar, no number."""
    return word not in GRAMMAR and not word[0].isdigit()


def has_mark(text: str, first: Word, second: Word) -> bool:
    """Whether punctuation stands between two words of a text."""
    return _MARK.search(text, first.end, second.start) is not None


def only_comma(text: str, first: Words, second: Words) -> bool:
    """Whether nothing but a comma stands between two pieces."""
    return text[first[-1].end : second[0].start].strip() == ","


OPENS_AN_ASIDE: Final = word_set(
    "to of in on at by for from with into over under about after before during without within upon against among"
    " since until while because although though unless whether if when where who whom whose which what that than"
    " as so yet then however indeed perhaps maybe too also please sir madam dear etc eg ie say well why yes no"
    " yeah oh ah now not once therefore thus moreover furthermore finally especially particularly including namely"
    " both either neither mr mrs there here respectively"
)
"""First words of what stands between commas without being a member of a list."""


def bare(part: Words) -> Words:
    """A part without the conjunction at its head, unless it is nothing else."""
    return part[1:] if len(part) > 1 and part[0].lower in CONJUNCTIONS else part


def span_between(first: Word, last: Word) -> Span:
    """From one word to another."""
    return Span(first.start, last.end)
