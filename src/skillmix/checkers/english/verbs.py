"""Find the finite verb of a main clause, by lists of verbs and by the neighbours of a word.

The lists below are of common verbs. `verb_forms.json` has further ones; `bench/verb_forms.py` makes it.
"""

import json
from importlib.resources import files
from typing import Final

from skillmix.checkers.english.words import LITTLE, PREPOSITIONS, word_set
from skillmix.checkers.passage import Words

_AUXILIARY: Final = word_set(
    "am is are was were has have had do does did will would can could shall should may might must cannot ain't "
    "let's let isn't aren't wasn't weren't hasn't haven't hadn't don't doesn't didn't won't wouldn't can't couldn't "
    "shan't shouldn't mustn't needn't i'm you're we're they're i've you've we've they've i'll you'll he'll she'll "
    "it'll we'll they'll that'll there'll i'd you'd he'd she'd it'd we'd they'd he's she's it's that's there's "
    "what's who's where's here's how's thank thanks sorry please beware welcome ought could've would've should've "
    "might've must've who'd who'll who've that'd there'd what'll what're where're how're dost doth didst hast hath "
    "hadst wilt wouldst shalt shouldst canst couldst wert wast tis twas"
)
_SUBJECT: Final = word_set(
    "i you he she it we they who there nobody somebody everybody everyone someone nothing anybody anyone thou ye"
)
_FORMS: Final[dict[str, frozenset[str]]] = {
    name: word_set(words)
    for name, words in json.loads(
        (files("skillmix.checkers.english") / "verb_forms.json").read_text(encoding="utf-8")
    ).items()
}
_PAST: Final = _FORMS["past"] | word_set(
    "came went saw said made took gave got knew thought found told became left felt brought began kept held wrote "
    "stood heard meant met ran paid sat spoke lay led grew lost fell sent built spent drew broke wore ate drove "
    "chose rose flew threw caught taught bought sold fought won woke rang sang drank swam sank blew froze stole "
    "shook tore bent hung slept swept wept crept dealt dug fed fled hid rode shone shot slid spun stuck struck "
    "swore swung bore bit forgot forgave understood lit leapt overslept stank sprang shrank knelt dreamt spilt "
    "burnt smelt spelt trod sought bound wound withdrew overcame foresaw laid strode shed cut put hit shut beat "
    "cost set hurt read quit spread thrust lent wove clung flung slung stung sped strove wrung bade bled bred arose "
    "awoke mistook overtook outgrew outran oversaw overheard undid undertook upheld withheld withstood rewrote rebuilt "
    "retold repaid unwound dwelt foretold forbade learnt leant"
)
# Base forms that are nearly always verbs; their form in -s counts too.
_COMMON: Final = word_set(
    "abandon absorb accelerate accept accompany accomplish achieve acquire act add address admire admit adopt adore "
    "affirm afford agree allow amuse anchor announce annoy answer anticipate apologize appear apply appreciate "
    "approve argue arise arrive ask assert assist assume assure attend attract avoid babble bake bargain bark bathe "
    "be bear beat become beep beg begin behave believe belong bend bequeath betray beware bind bite blame blend "
    "bless blink block bloom blow bluff board boil bolt bore borrow bother bounce bow break breathe brew bribe "
    "bring bruise brush build burn burst bury buy buzz call cancel carry carve cast catch cause cease celebrate "
    "change chase cheat check cheer cherish chew chime chirp choose chop chuckle claim clap clean climb close cluck "
    "collapse collect comb come comfort commit communicate compare compete complain concentrate conclude conduct "
    "confront congratulate connect conquer consider consist construct contain continue contribute convert convey "
    "convince cook cooperate cope cost count cover crack cradle cram crawl creak create creep cross crumble crunch "
    "cry cure curl curse cut dance dare deal decay decide declare defeat defend define delight deliver demand "
    "demonstrate deny depart depend describe deserve despise destroy detect determine develop devour die dig dip "
    "disagree disappear disappoint discover discuss dismiss distinguish dive divide dominate doubt doze drain draw "
    "dream dribble drift drink drip drive drool drop drown drum dry dust earn eat echo eliminate emerge enable "
    "encourage end enforce engage enhance enjoy ensure enter entertain envy equal escape establish execute exist "
    "expand expect expire explain express extend face fade fail fall fasten fear feed feel fetch fight figure fill "
    "find finish fire fish fit fix flee flirt float flood flow flunk fly focus fold follow force forge forget "
    "forgive form freeze frighten frown fry fulfill gain gallop garnish gather gaze generate get giggle give glance "
    "glaze glow go gobble govern grade grant grasp grate greet grieve grin grind groan grow growl guarantee guard "
    "guess gulp haggle hammer hand handle hang happen harvest hatch hate haul head hear help hide highlight hire "
    "hiss hit hoard hold honk hoot hop hope host hover howl hug hum hunt hurry hurt ignore imagine implement impose "
    "impress improve incorporate increase indicate inform inherit insist inspire integrate intend interact "
    "interfere interrupt introduce invest investigate invite involve iron join judge jump justify keep kick kill "
    "kiss knead kneel knit knock know land last laugh launch lay lead leak lean leap learn leave lend lick lie lift "
    "light lighten like limp linger listen live loathe locate lock look loosen lose love mail maintain make manage "
    "march mark marry match matter mean measure meet melt mend mention mind minimize miss mix moan mold mop mourn "
    "move mumble mutter nail name near need negotiate nest nibble nod notice obey obtain occur offer open oppose "
    "organize overcome owe own pack paddle paint participate pass pay peel peer pepper perch perform permit "
    "persuade pick pile place plant play please pluck plug point polish possess post pounce pour practice "
    "practise pray predict prefer prepare preserve press presume pretend prevail prevent produce promise promote "
    "propose protect prove provide prune pull punish purr pursue push put quack qualify question quit raise rake "
    "rattle reach react read realize reap rebuild receive recognize recommend reconcile recover reduce refer reflect "
    "refuse regain regret regulate reign reinforce reject relate relax rely remain remember remove renew rent repair "
    "repeat replace require rescue resemble resist resolve respect respond rest restore retain retire return reverse "
    "reward ride ring rinse ripen rise roam roast rock roll rot row ruin rule run rust sail satisfy save say scare "
    "scatter score scrape scratch scream scrub sculpt seal season see seem seize sell send sense serve set settle "
    "sew shake shape share shatter shave shed shelter shine shoot shout show shrink shuffle shut sigh sign signal "
    "simmer sing sink sip sit skate sketch sleep slice slip smell smile smoke snap snooze snore soak soar sob solve "
    "soothe sort sound sow spare spark speak spell spend spill spin splash split spread sprinkle sprout squeeze "
    "stack stagger stamp stand stare start stay steal steam steer stir stitch stop store strengthen stretch stroll "
    "strum study stumble submit substitute sue suffer suggest suppose surf surprise surrender survive sustain "
    "swaddle swallow swear sweep swell swim swing tackle take talk taste teach tear tease tell thank thaw think "
    "throw tick tie tighten toast touch tow train transform translate travel treasure trim trip trust try tuck "
    "tumble tune turn twist understand undertake unfold untie upset urge use vanish vary verify view visit vote "
    "wait wake walk wander want warm warn wash waste watch water wave wear weave weep weigh whine whisk whisper "
    "whistle wilt win wink wish withdraw witness wonder work worry wrap write yawn yell"
)
_NOUN_TOO: Final = (_FORMS["verbs or nouns"] - _COMMON) | word_set(
    "act address anchor answer bargain bark bear beat beep bend bite blame blend block bloom blow board bolt bore "
    "bounce bow break brew bruise brush burn buzz call cast catch cause change chase cheat check cheer chime chirp "
    "chop claim clean close comb comfort conduct cook cost count cover crack cradle crawl cross cry cure curl curse "
    "cut dance deal decay defeat dip dive doubt drain dream drift drink drive drop drum dry dust echo end envy "
    "equal express face fade fall fear fight figure fill finish fire fish fit float flood flow fly focus fold force "
    "forge form freeze frown gain garnish giggle glaze glow grade grant grasp grin grind groan growl guarantee "
    "guard guess gulp hammer hand handle harvest hatch haul head help highlight hiss hit hoot hope host howl hug "
    "hum hunt hurt increase iron judge jump kick kiss land last laugh launch lead leak lean leap leave lick lie "
    "lift light like limp lock look love mail march mark match mind miss mix moan mold mop mourn move nail name "
    "need nest nibble nod offer open pack paint pass pay pepper perch pick pile place plant play plug point polish "
    "post practice pull push question rake rattle regret reign rent repair rest return reverse reward ride ring "
    "rise roast rock roll rot row ruin rule run rust sail save score scratch scream seal season sense set shake "
    "shape share shatter shed shelter shine shoot shout show sigh sign signal sip skate sketch sleep slice slip "
    "smell smile smoke snap sob sort sound spare spark spell spill spin split spread sprinkle stack stamp stand "
    "stare start stay steam stir stop store stretch stroll study substitute surprise swim swing talk taste tear "
    "tick tie toast touch train travel treasure trim trip trust try tumble tune turn twist urge use view visit vote "
    "wait wake walk warm wash waste watch water wave whine whisper whistle win wink wish witness wonder work worry "
    "yawn"
)
_SURE: Final = _COMMON | _FORMS["verbs"] | _FORMS["verbs or nouns"]
_ORDERS: Final = _FORMS["orders"]
"""Verbs that are nouns too, but rarely at the start of a sentence: "Use soap"."""
_RARELY: Final = _FORMS["rarely verbs"]
_ADJECTIVES: Final = _FORMS["adjectives"]
_DETERMINER: Final = word_set(
    "the a an my your his her its our their this that these those some any no every each me him them us it you what "
    "how nothing everything something anything everyone both all another two three four five six seven eight nine "
    "ten"
)
_SINGLE: Final = word_set("a an this that every each another one")
_ARTICLE: Final = _SINGLE | word_set("the my your his her its our their no")
_NOT_BEFORE_VERB: Final = _DETERMINER | word_set(
    "of in on at for with from by under over into onto about between through during without and or but nor as than "
    "like to very so too more most such two three four five six seven eight nine ten many few several"
)
_ADVERB: Final = word_set(
    "never always often still also only just even already not soon then now once again rarely seldom sometimes "
    "almost really all both ever"
)
_OFTEN: Final = word_set("never always often rarely seldom sometimes")
"""Adverbs that do not come before a noun."""
_AFTER_VERB: Final = _DETERMINER | word_set(
    "in on at for with from by under over into onto about between through to up down away back out off and as like "
    "so too again more very when until because if that alone still here there home well not than better slowly "
    "quietly"
)
_SEVERAL: Final = word_set("some others many most people children men women both all few")
_ADJECTIVE_ENDINGS: Final = ("less", "ful", "ous", "ive", "ish", "ed")
_SUBORDINATOR: Final = word_set(
    "that which who whom whose where when while if because although though unless until whether whenever wherever"
)


_RELATIVE: Final = word_set("that which who whom whose where")
_PREPOSITION: Final = word_set(
    "of in on at for with from by under over into onto about between through during without to behind beside beneath "
    "above below near around past across along against after before"
)
_TIME: Final = word_set(
    "noon midday midnight dawn dusk dark sunset sunrise nightfall bedtime lunch dinner morning evening night tomorrow "
    "tonight late now then monday tuesday wednesday thursday friday saturday sunday next last one two three four five "
    "six seven eight nine ten eleven twelve spring summer autumn fall winter"
)
_OPENER: Final = word_set("please never always just then first now so and but or only also don't")
_POINTERS: Final = word_set("this that it you all each both nothing everything something anything")
"""Determiners and objects that can also be the subject at the start of a clause."""
_HEADS_A_NOUN: Final = word_set("the a an my your his her its our their these those every another no some any")
"""Words that cannot follow a noun inside a noun phrase."""
_LY_NOT_ADVERB: Final = word_set(
    "family butterfly dragonfly assembly anomaly monopoly melancholy italy belly jelly bully reply supply rely apply "
    "imply comply multiply"
)
_OBJECTS: Final = _HEADS_A_NOUN | word_set("it him them me us")
_NO_VERB: Final = (
    LITTLE
    | PREPOSITIONS
    | word_set(
        "together alone away back round throughout despite towards opposite amid beyond outside inside half quite "
        "rather twice besides perhaps maybe yes"
    )
)
_REFLEXIVE: Final = word_set("myself yourself himself herself itself ourselves themselves")
_MOODS: Final[dict[str, frozenset[str]]] = {
    "?": word_set("what how why where who which when whose any anything anyone anybody more another no nothing"),
    "!": word_set("what how"),
}
"""First words of questions and exclamations that need no verb: "Any news?", "What a day!"."""
_VERBLESS: Final = frozenset(
    (first, second)
    for first, seconds in {
        "no": "wonder doubt need use matter sooner point time sign",
        "so": "much long",
        "off": "with",
        "away": "with",
        "down": "with",
        "long": "live",
        "never": "mind fear",
        "all": "aboard",
    }.items()
    for second in seconds.split()
)
"""First two words of sentences that are complete without a verb of their own."""


def is_complete(pieces: tuple[Words, ...], text: str) -> bool:
    """Whether a sentence has a main clause, or a form that needs none: "What a day!", "The sooner, the better."."""
    question = "?" in text
    return bool(pieces) and (_needs_no_verb(pieces, text) or has_main_clause(pieces, question))


def _needs_no_verb(pieces: tuple[Words, ...], text: str) -> bool:
    # "Oh, what a day!"
    first = pieces[1] if len(pieces) > 1 and len(pieces[0]) < 3 else pieces[0]
    if len(first) < 2 or first[1].lower == "to":
        return False
    opening = first[0].lower
    if any(mark in text and opening in words for mark, words in _MOODS.items()):
        return True
    if (opening, first[1].lower) in _VERBLESS:
        return True
    return len(pieces) > 1 and _compares(pieces[0]) and _compares(pieces[1])


def _compares(piece: Words) -> bool:
    """Whether a piece begins with "the" and a comparative: "the sooner", "the more"."""
    return len(piece) > 1 and piece[0].lower == "the" and piece[1].lower.endswith(("er", "more", "less", "worse"))


def has_main_clause(pieces: tuple[Words, ...], question: bool) -> bool:
    """Whether the pieces of a sentence have more finite verbs than words that open a subordinate clause."""
    opened = 0
    for number, piece in enumerate(pieces):
        if number and not question and piece[0].lower in _RELATIVE and not _points(piece):
            continue
        if _has_main_verb(piece, question, opened):
            return True
        if number > 1 and _resumes(pieces[number - 2], pieces[number - 1], piece):
            return True
        # "a bridge that, in its way, should be ..."
        if piece[-1].lower in _RELATIVE and piece[-2:][0].lower not in _NOT_BEFORE_VERB:
            opened = 1
    return _is_short_order(pieces)


def _resumes(subject: Words, aside: Words, piece: Words) -> bool:
    """Whether a piece continues a subject after an aside: "Roses, wild roses, bloom", "Waves, passing by it, bend"."""
    opening = aside[0].lower
    if aside[-1].lower != subject[-1].lower and opening not in _ARTICLE and not _interrupts(aside):
        return False
    first, after = piece[0].lower, piece[1].lower if len(piece) > 1 else ""
    if first.endswith("ed") and after in ("by", "with", "in", "as"):
        return False  # "a jar, an old one, filled with buttons"
    if first.endswith("s") and _stem(first) not in _COMMON and after in PREPOSITIONS:
        return False  # "a chair, a lamp, books without covers"
    return is_finite(subject + piece, len(subject))


def _interrupts(aside: Words) -> bool:
    """Whether an aside is a relative clause, a participle or a name."""
    opening = aside[0].lower
    return opening in _RELATIVE or opening.endswith("ing") or (len(aside) < 3 and aside[0].text[0].isupper())


def _is_short_order(pieces: tuple[Words, ...]) -> bool:
    """Whether the first word is an order, and a later piece says why or when: "Run, Tom, because it rains"."""
    if not pieces or len(pieces[0]) > 1 or pieces[0][0].lower not in _SURE:
        return False
    return any(
        piece[0].lower in _SUBORDINATOR and any(is_finite(piece, index) for index in range(1, len(piece)))
        for piece in pieces[1:]
    )


def _has_main_verb(piece: Words, question: bool, opened: int) -> bool:
    verbs = 0
    for index, word in enumerate(piece):
        if is_finite(piece, index):
            verbs += 1
            if verbs > opened:
                return True
        elif word.lower in _SUBORDINATOR and _opens(piece, index, question):
            opened += 1
    return False


def _opens(piece: Words, index: int, question: bool) -> bool:
    """Whether a word opens a subordinate clause, unlike a question word, "that house" or "until noon"."""
    word = piece[index].lower
    after = piece[index + 1].lower if index + 1 < len(piece) else ""
    if (word == "until" and _gives_time(piece, index)) or (word not in _RELATIVE and after.endswith("ing")):
        return False  # "while waiting"
    if index:
        if word == "that" and piece[index - 1].lower in _PREPOSITION:  # "in that house"
            return False
        return piece[index - 1].lower not in ("little", "a", "long", "like")  # "for a while", "a night like that"
    return not question and not _points(piece) and word != "that"  # "That old clock"


def _gives_time(piece: Words, index: int) -> bool:
    """Whether "until" only gives a time: "until noon", "from Monday morning until the last bell"."""
    after = piece[index + 1].lower if index + 1 < len(piece) else ""
    return after in _TIME or any(word.lower == "from" for word in piece[max(index - 5, 0) : index])


def _points(piece: Words) -> bool:
    """Whether a piece begins as in "That is", "That old clock", "Who would" or "If only"."""
    if len(piece) < 2:
        return False
    first, second = piece[0].lower, piece[1].lower
    if second == "only" or (first in ("that", "who") and second in _AUXILIARY):
        return True
    return first == "that" and second not in _DETERMINER and second not in _SUBJECT


def is_finite(piece: Words, index: int) -> bool:
    """Whether the word at an index is a finite verb, as far as its neighbours tell."""
    word = piece[index].lower
    if word in _AUXILIARY:
        return True
    before = piece[index - 1].lower if index else ""
    if word in _PAST:
        return (
            before not in _ARTICLE or before == "one" or _is_pointer(before, index) or _follows_relative(piece, index)
        )
    often = before in _OFTEN
    while index > 1 and _is_adverb(before):
        piece = (*piece[: index - 1], *piece[index:])
        index -= 1
        before = piece[index - 1].lower
    return _is_verb_here(piece, index, before, often)


def _is_adverb(word: str) -> bool:
    if word in _ADVERB:
        return True
    return word.endswith("ly") and len(word) > 5 and word not in _LY_NOT_ADVERB and word not in _ADJECTIVES


def _is_verb_here(piece: Words, index: int, before: str, often: bool) -> bool:
    word = piece[index].lower
    after = piece[index + 1].lower if index + 1 < len(piece) else ""
    if before in _SUBJECT and (word == "like" or (word not in _NOT_BEFORE_VERB and word not in _NO_VERB)):
        return True
    if word.endswith("ed") and len(word) > 3:
        return _is_past(piece, index, before) if index else _takes_object(piece, after)
    if word.endswith("s") and word not in _SURE:
        if often and _stem(word) in _SURE:
            return True
        return _is_third_person(piece, index, before, after)
    if before in _AUXILIARY or word == "like":
        return False
    if word in _SURE:
        return _is_plain_form(piece, index, before, after)
    return word in _RARELY and after in _OBJECTS and (index == 0 or before in _OPENER or _is_plural(before))


def _is_pointer(before: str, index: int) -> bool:
    """Whether the first word of a piece is a pronoun such as "this", the subject of the word after it."""
    return index == 1 and before in _POINTERS


def _is_past(piece: Words, index: int, before: str) -> bool:
    if before not in _NOT_BEFORE_VERB or before == "them":
        return True
    return _is_pointer(before, index) or _follows_relative(piece, index)


def _follows_relative(piece: Words, index: int) -> bool:
    """Whether "that" comes right before the index and after a noun: "the cart that carried wool"."""
    return index > 1 and piece[index - 1].lower == "that" and piece[index - 2].lower not in _NOT_BEFORE_VERB


def _is_plain_form(piece: Words, index: int, before: str, after: str) -> bool:
    """Whether a base form is an order at the start of a clause, or the verb of a plural subject."""
    word = piece[index].lower
    if before in ("that", "which", "god", "heaven", "lord") or (before in ("these", "those") and word not in _NOUN_TOO):
        return True
    if index == 0 or before in _OPENER or (index == 1 and _is_adverb(before)):
        return _is_order(word, before, after)
    if before in _SEVERAL or (word not in _NOUN_TOO and len(piece) > 2 and before not in _NOT_BEFORE_VERB):
        return True
    if before in _NOT_BEFORE_VERB:
        return False
    if index > 1 and piece[0].lower in ("those", "these", "both"):
        return True  # "Those who arrive late miss the soup"
    # "Bakers work", "nine out of ten children in my class walk to school"
    several = before if after not in _AFTER_VERB else max((word.lower for word in piece[:index]), key=_is_plural)
    return _is_plural(several)


def _is_order(word: str, before: str, after: str) -> bool:
    """Whether a base form at the start of a clause is an order: "Bake it", "Never mind", "Use soap", "Call me"."""
    if word not in _NOUN_TOO or before in _OFTEN or (after == "of" and word in _WITH_OF):
        return bool(after)
    if word in _ORDERS and before not in ("and", "or"):
        return bool(after) and (after not in _NO_OBJECT or (after == "on" and word in _WITH_ON))
    return after in _AFTER_VERB and after not in ("in", "on", "and", "with")


_NO_OBJECT: Final = PREPOSITIONS - word_set("to about at for with into") | word_set("and or but")
_WITH_ON: Final = word_set("focus work turn hold carry put lean step press go look call")


def _is_plural(word: str) -> bool:
    return (word.endswith("s") and not word.endswith(("ss", "'s", "us", "is"))) or word in _SEVERAL


def _is_third_person(piece: Words, index: int, before: str, after: str) -> bool:
    word = piece[index].lower
    stem = _stem(word)
    if word.endswith(("ss", "us", "'s")) or stem not in _SURE:
        return index > 0 and _is_unknown_verb(piece, index, before, after)
    if index == 0:
        return stem not in _NOUN_TOO and (after in _SUBJECT or after in _HEADS_A_NOUN)  # "..., says she"
    if before in ("this", "that", "it") or _is_one_of(piece, index):
        return True  # "This forces him": a plural noun would follow "these"
    if stem not in _NOUN_TOO:
        return before not in _NOT_BEFORE_VERB or before in _OPENER
    return before not in _NOT_BEFORE_VERB and _is_verb_not_noun(piece, index, before, after)


def _is_one_of(piece: Words, index: int) -> bool:
    """Whether a phrase such as "none of us" comes right before the index."""
    return (
        index > 1 and piece[index - 2].lower == "of" and piece[index - 1].lower in ("us", "them", "you", "it", "these")
    )


def _is_unknown_verb(piece: Words, index: int, before: str, after: str) -> bool:
    """Whether an unlisted word in -s is a verb: a singular noun comes before it, and an object after it."""
    if piece[index].lower.endswith(("ss", "us", "'s")) or before in _NOT_BEFORE_VERB or _is_plural(before):
        return False
    return (
        not before.endswith(_ADJECTIVE_ENDINGS) and after in _DETERMINER and _follows(piece, index, _SINGLE | {"the"})
    )


def _is_verb_not_noun(piece: Words, index: int, before: str, after: str) -> bool:
    """Whether a word in -s that may also be a plural noun is a verb: "the bus runs from", "three arches crosses"."""
    if after in _HEADS_A_NOUN:
        return True
    if before in _ADJECTIVES or before.endswith(_ADJECTIVE_ENDINGS):
        return False
    if _is_plural(before):
        # Two plural nouns are no compound; "makes plans" is a verb and its object.
        return index > 1 and (_stem(before) in _NOUN_TOO or _stem(before) not in _SURE)
    if before in _PAST or (index == 1 and _stem(piece[1].lower) not in _COMMON):
        return False  # "lent books", "Street markets"
    if index == 1:
        return not after or after in _DETERMINER or (piece[0].text[0].isupper() and after in _AFTER_VERB)
    goes_on = after not in ("of", "or", "and") or (after == "of" and _stem(piece[index].lower) in _WITH_OF)
    return goes_on and (piece[index - 1].text[0].isupper() or _follows(piece, index, _ARTICLE))


_WITH_OF: Final = word_set("talk smell taste dream")


def _follows(piece: Words, index: int, articles: frozenset[str]) -> bool:
    """Whether an article, up to three adjectives or nouns and a noun come right before the index."""
    for word in reversed(piece[max(index - 5, 0) : index - 1]):
        if word.lower in articles:
            return True
        if word.lower in _NOT_BEFORE_VERB and word.lower != "of":
            return False
    return False


def _takes_object(piece: Words, after: str) -> bool:
    """Whether the first word of a piece, in -ed, is a verb: "..., cried Tom", "..., decided that ..."."""
    if after in _DETERMINER or after in _REFLEXIVE or after in ("when", "that", "to", "not"):
        return True
    return len(piece) > 1 and piece[1].text[0].isupper()


def _stem(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes", "oes", "zes")):
        return word[:-2]
    return word[:-1]
