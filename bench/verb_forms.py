"""Make the lists of verb forms: `python bench/verb_forms.py INFLECTIONS TAGS EDITED [EDITED …]`.

INFLECTIONS is `lemminflect/resources/infl_lu.csv.gz` of the PyPI package lemminflect 0.2.3: nouns, verbs and adjectives
with their forms, from the SPECIALIST lexicon of the US National Library of Medicine. TAGS is
`textblob/en/en-lexicon.txt` of the PyPI package textblob 0.20.1: the most frequent part of speech of each word. EDITED
are text files; a verb is listed only if they contain one of its forms, which excludes rare and coarse verbs.
"""

import csv
import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

from skillmix.checkers import words
from skillmix.checkers.words import LITTLE, PREPOSITIONS, word_set

NO_VERBS = (
    LITTLE
    | PREPOSITIONS
    | {"like", "please", "thank", "welcome", "well", "yes", "one", "mr", "mrs"}
    | word_set("dun ejaculate fart freak fuck pee piss samba screw shit")
)
"""Words that are rarely verbs, or that `verbs.py` treats separately."""
_AFTER_MODAL = re.compile(
    r"\b(?:will|would|can|could|should|must|may|might|shall|don't|doesn't|didn't|won't|can't|cannot|let's)"
    r" (?:not |never |always |also )?([a-z]+)"
)

_AS_VERB = re.compile(
    r"\b(?:to|will|would|can|could|should|must|may|might|shall|don't|doesn't|didn't|won't|can't|cannot|let's|i|we|they"
    r"|you) ([a-z]+)"
)
_AS_NOUN = re.compile(r"\b(?:the|a|an|my|your|his|her|its|our|their|this|that|some|no|of|in|with|for) ([a-z]+)")
_NOUNS_IN_ING = {"lightning", "railing", "siding", "stocking", "shilling"}
MOSTLY = 0.55
"""The share of verbs among a word's verb and noun uses above which it can begin an order: "Use soap"."""
FREQUENT = 8
"""The minimum number of uses of an adjective in the list."""


def main(inflections: Path, tags: Path, edited: list[Path]) -> None:
    """Write the lists into the package."""
    text = " ".join(path.read_text("utf-8", errors="ignore").lower() for path in edited).replace("’", "'")
    used = set(re.findall(r"[a-z]+", text))
    verbs_in_use = set(_AFTER_MODAL.findall(text))
    as_verb, as_noun = Counter(_AS_VERB.findall(text)), Counter(_AS_NOUN.findall(text))
    counts = Counter(re.findall(r"[a-z]+", text))
    tag_of = dict(line.split()[:2] for line in tags.read_text("utf-8").splitlines() if len(line.split()) > 1)
    with gzip.open(inflections, "rt", encoding="utf-8") as stream:
        rows = [row for row in csv.reader(stream) if re.fullmatch(r"[a-z]+", row[0])]
    others = {row[0] for row in rows if row[1] in ("noun", "adj", "adv")}
    lists: dict[str, set[str]] = {
        "verbs": set(),
        "verbs or nouns": set(),
        "rarely verbs": set(),
        "orders": set(),
        "past": set(),
    }
    for base, kind, *parts in rows:
        forms = {form for part in parts for form in part.split("/") if form}
        if kind != "verb" or base in NO_VERBS or len(base) < 2 or base in _NOUNS_IN_ING or not used & {base, *forms}:
            continue
        if base not in others or tag_of.get(base) in ("VB", "VBP"):
            lists["verbs"].add(base)
        else:
            lists["verbs or nouns" if base in verbs_in_use else "rarely verbs"].add(base)
        if base in others and as_verb[base] > MOSTLY * (as_verb[base] + as_noun[base]):
            lists["orders"].add(base)
        if base.endswith("ize") and base in lists["verbs"]:
            lists["verbs"].add(base[:-2] + "se")
        past = {form for form in parts[0].split("/") if re.fullmatch("[a-z]{3,}", form) and not form.endswith("ed")}
        lists["past"] |= {form for form in past & used - NO_VERBS if form not in others or tag_of.get(form) == "VBD"}
    adjectives = {row[0] for row in rows if row[1] == "adj"}
    lists["adjectives"] = {
        word for word in adjectives - NO_VERBS if tag_of.get(word) == "JJ" and counts[word] >= FREQUENT
    }
    target = Path(words.__file__).with_name("english") / "verb_forms.json"
    stored = {name: " ".join(sorted(words)) for name, words in lists.items()}
    target.write_text(json.dumps(stored, indent=0) + "\n", encoding="utf-8")
    print({name: len(words) for name, words in lists.items()}, target.stat().st_size, "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]])
