"""Copies among texts that come in pieces are those among all texts at once."""

import random
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from skillmix.datasets.corpus import Corpus, corpus_of
from skillmix.datasets.growing_copies import GrowingCopies
from skillmix.datasets.kept_texts import Removal, removals

EXAMPLE = "b a b a b a b a b"
WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=9).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(WORDS, max_size=8), max_size=5), st.sampled_from([None, 0.4, 0.7, 1.0]), st.booleans())
def test_what_is_learned_in_pieces_is_what_all_texts_at_once_show(
    pieces: list[list[str]], threshold: float | None, keeps_exact: bool
) -> None:
    find = partial(removals, examples=[EXAMPLE], threshold=threshold, keeps_exact=keeps_exact)
    copies = GrowingCopies(find)
    texts: list[str] = []
    found: list[Removal] = []
    for piece in pieces:
        texts += piece
        found += copies.learn(piece)

        assert found == find(corpus_of(texts))
        assert len(copies) == len(texts)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, max_size=12), st.lists(WORDS, max_size=8), st.randoms(use_true_random=False))
def test_texts_that_are_not_taken_are_forgotten(first: list[str], second: list[str], chance: random.Random) -> None:
    find = partial(removals, examples=[EXAMPLE], threshold=0.4, keeps_exact=False)
    copies = GrowingCopies(find)
    gone = {one.text_index for one in copies.learn(first)}
    taken = [number for number in range(len(first)) if number not in gone and chance.random() < 0.5]

    copies.keep_only(taken)

    rest = [first[number] for number in taken]
    assert copies.learn(second) == find(corpus_of([*rest, *second]))


def test_a_new_text_is_compared_with_few_of_the_old_ones() -> None:
    sizes = []

    def find(corpus: Corpus) -> list[Removal]:
        sizes.append(len(corpus))
        return removals(corpus, examples=[], threshold=0.7)

    copies = GrowingCopies(find)
    copies.learn(f"w{n} x{n} y{n} z{n} and so on" for n in range(300))

    assert copies.learn(["w7 x7 y7 z7 and so forth", "nothing like it before"]) == []
    found = copies.learn(["w7 x7 y7 z7 and so on"])
    assert [(r.text_index, r.why, r.copy_of) for r in found] == [(302, "exact copy", 7)]
    assert sizes == [300, 3, 302]  # the last text shares "and so on" with all of the first, and more with another
