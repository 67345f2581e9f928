"""Names of held-out skills in the words of other texts, against the plain way of finding them."""

from hypothesis import given
from hypothesis import strategies as st

from skillmix.datasets.leakage import NameFinder
from skillmix.datasets.words import words_of

SKILLS = ("red herring", "pun", "cliché", "one's own (fallacy)", "self-serving bias", "Occam's razor")
BITS = ("red", "Red", "herring", "herrings", "pun", "PUN", "punt", "clichÉ", "cliché", "one’s", "one's", "own", "self")
BETWEEN = (" ", "—", "-", "’", "'", "é", "_", ", ", "\n")
TEXTS = st.lists(st.sampled_from((*BITS, "serving", "bias", "Occam's", "razor", *BETWEEN, *BETWEEN))).map("".join)


def plainly(text: str) -> set[str]:
    words = words_of(text)
    names = {skill: words_of(skill.partition(" (")[0]) for skill in SKILLS}
    return {skill for skill, name in names.items() if any(words[p : p + len(name)] == name for p in range(len(words)))}


@given(st.lists(TEXTS, max_size=5))
def test_a_finder_for_many_texts_finds_in_each_what_is_in_it(texts: list[str]) -> None:
    finder = NameFinder(SKILLS)
    near = finder.among("\n".join(texts))

    for text in texts:
        assert finder.names_in(text) == plainly(text)
        assert (near.names_in(text) if near else set()) == plainly(text)


def test_a_finder_for_many_texts_leaves_out_what_is_in_none() -> None:
    finder = NameFinder(SKILLS)

    assert finder.among("A punt on the river, a herring in the sea.") is None
    assert finder.among("Red sails.") is not None
