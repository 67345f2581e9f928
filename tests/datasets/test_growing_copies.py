"""Copies among texts that come in pieces are those among all texts at once."""

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from skillmix.catalog.combinations import Combination
from skillmix.datasets.corpus import Corpus, corpus_of
from skillmix.datasets.growing_copies import GrowingCopies
from skillmix.datasets.kept_texts import KeptText, Removal, removals

EXAMPLE = "b a b a b a b a b"
WORDS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=9).map(" ".join)


def kept(text: str, number: int) -> KeptText:
    combination = Combination(f"{number:016x}", ("s",), "t")
    facts = ("fine", "m", ("", ""), "p", ("g",), ("[[1]]",))
    return KeptText("r", "w", combination, 0, (0, len(text)), "", (text, text), *facts)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(WORDS, max_size=8), max_size=5), st.sampled_from([None, 0.4, 0.7, 1.0]), st.booleans())
def test_what_is_learned_in_pieces_is_what_all_texts_at_once_show(
    pieces: list[list[str]], threshold: float | None, keeps_exact: bool
) -> None:
    find = partial(removals, examples=[EXAMPLE], threshold=threshold, keeps_exact=keeps_exact)
    copies = GrowingCopies(find)
    texts: list[KeptText] = []
    for piece in pieces:
        texts = texts + [kept(text, len(texts) + number) for number, text in enumerate(piece)]

        assert copies.removals(texts) == find(corpus_of(t.text for t in texts))


def test_a_new_text_is_compared_with_few_of_the_old_ones() -> None:
    sizes = []

    def find(corpus: Corpus) -> list[Removal]:
        sizes.append(len(corpus))
        return removals(corpus, examples=[], threshold=0.7)

    copies = GrowingCopies(find)
    texts = [kept(f"w{n} x{n} y{n} z{n} and so on", n) for n in range(300)]
    copies.removals(texts)
    texts = [*texts, kept("w7 x7 y7 z7 and so forth", 300), kept("nothing like it before", 301)]

    assert copies.removals(texts) == []
    texts = [*texts, kept("w7 x7 y7 z7 and so on", 302)]
    assert [(r.text_index, r.why, r.copy_of) for r in copies.removals(texts)] == [(302, "exact copy", 7)]
    assert sizes == [300, 3, 302]  # the last text shares "and so on" with all of the first, and more with another


def test_other_texts_than_before_are_compared_anew() -> None:
    copies = GrowingCopies(partial(removals, examples=[], threshold=0.7))
    one, same, other = (kept(text, n) for n, text in enumerate(("a b c d e", "a b c d e", "f g h i")))

    assert [r.text_index for r in copies.removals([one, same])] == [1]
    assert copies.removals([other, one]) == []
    assert copies.removals([]) == []
