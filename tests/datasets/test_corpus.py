"""Copies, near copies, frames and copied examples, against the plain way of finding them."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillmix.catalog.files import load_catalog
from skillmix.datasets.copies import FOLLOWS, earlier_copies, example_shares, removals
from skillmix.datasets.corpus import corpus_of, distinct_share, holds_run_of, repeated_frames, words_of

TEXTS = st.lists(st.lists(st.sampled_from("abcdef"), min_size=0, max_size=9).map(" ".join), max_size=25)


def plainly(texts: list[str], threshold: float) -> list[bool]:
    """Which texts are kept, by comparing each with all that are kept before it."""
    kept: list[int] = []
    words = [words_of(text) for text in texts]
    runs = [set(zip(w, w[1:], w[2:], strict=False)) for w in words]
    for place in range(len(texts)):
        is_copy = any(
            words[place] == words[other]
            or (runs[place] and len(runs[place] & runs[other]) / len(runs[place] | runs[other]) >= threshold)
            for other in kept
        )
        if not is_copy:
            kept.append(place)
    return [place in kept for place in range(len(texts))]


def copies_of(texts: list[str], threshold: float | None) -> list[int | None]:
    """For each text the earlier one that it repeats; None for kept texts."""
    found = earlier_copies(corpus_of(texts), threshold=threshold).tolist()
    return [None if copy < 0 else copy for copy in found]


@settings(max_examples=200)
@given(TEXTS, st.sampled_from([0.3, 0.5, 0.7, 0.9, 1.0]))
def test_every_near_copy_is_found_and_nothing_else(texts: list[str], threshold: float) -> None:
    found = copies_of(texts, threshold)

    assert [copy is None for copy in found] == plainly(texts, threshold)
    assert all(copy is None or (copy < place and found[copy] is None) for place, copy in enumerate(found))


def test_copies_of_one_text_are_compared_with_it_alone() -> None:
    texts = [f"{' '.join('abcdefghijklmnopqrstuvwxyz')} {number}" for number in range(4_000)]
    start = time.thread_time()

    assert copies_of(texts, 0.7) == [None] + [0] * 3_999
    assert time.thread_time() - start < 2  # eight million comparisons would take half a minute


@given(TEXTS, st.integers(0, 25))
def test_a_longer_list_changes_nothing_before(texts: list[str], cut: int) -> None:
    assert copies_of(texts, 0.7)[:cut] == copies_of(texts[:cut], 0.7)


@given(st.text() | st.text(st.sampled_from("aB3_ '’-.\n\tÉßı"), max_size=40))
def test_words_of_plain_text_are_those_of_any_text(text: str) -> None:
    assert words_of(text) == re.findall(r"\w+(?:['’]\w+)*", text.casefold().replace("’", "'"))


def test_words_that_are_known_keep_their_numbers() -> None:
    corpus = corpus_of(["b c", "d b"], vocabulary={"a": 0, "b": 1})

    assert corpus.vocabulary == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert [corpus.text(number).tolist() for number in (0, 1)] == [[1, 2], [3, 1]]


def test_a_run_that_many_texts_share_hides_no_copy() -> None:
    texts = [f"once upon a time there was w{n} and x{n} and y{n}" for n in range(400)]
    texts += ["once upon a time there was w7 and x7 and y8"]

    assert copies_of(texts, 0.7) == [None] * 400 + [7]


def test_only_exact_copies_without_a_threshold() -> None:
    texts = ["The cat sat on the mat.", "the cat sat on the mat", "The cat sat on the map."]

    assert copies_of(texts, None) == [None, 0, None]


def test_frames_are_counted_by_text() -> None:
    texts = [f"In the heart of the city a {word} sang" for word in ("bird", "child", "clock")] + ["one two three four"]

    frames, framed = repeated_frames(corpus_of(texts), 6, most=5)

    assert [(frame.words, frame.texts) for frame in frames] == [
        ("in the heart of the city", 3),
        ("the heart of the city a", 3),
    ]
    assert framed == 3


def test_a_frame_repeated_inside_one_text_is_one_text() -> None:
    words = "a b c d e f "

    assert repeated_frames(corpus_of([words * 3]), 6, most=5) == ([], 0)


def test_distinct_runs() -> None:
    assert distinct_share(corpus_of(["a b c d", "a b c d"]), 4) == 0.5
    assert distinct_share(corpus_of(["a b c"]), 4) is None


def test_copies_of_examples_are_found_in_other_words_around_them() -> None:
    example = "The stars winked at the sailors as they came slowly home."
    texts = [
        "Well: the stars winked at the sailors as they slept.",
        "The stars winked, and the sailors came home.",
        "A borrowed umbrella never returns!",
    ]

    found = holds_run_of(corpus_of(texts), [example, "A borrowed umbrella never returns."], length=8)

    assert found.tolist() == [True, False, True]


def test_removals_say_why_and_of_what() -> None:
    texts = [
        "one two three four five six seven",
        "One two three four five six seven.",
        "one two three four five six eight",
        "told words that were told before by you",
        "something else",
    ]

    found = removals(corpus_of(texts), examples=["Told words that were told before by you."], threshold=0.6)

    assert [(r.text_index, r.why, r.copy_of) for r in found] == [
        (1, "exact copy", 0),
        (2, "near copy", 0),
        (3, "repeats an example", None),
    ]


@settings(max_examples=200)
@given(TEXTS, TEXTS)
def test_the_share_of_an_example_is_counted_by_its_three_word_runs(texts: list[str], examples: list[str]) -> None:
    def runs(text: str) -> set[tuple[str, str, str]]:
        words = words_of(text)
        return set(zip(words, words[1:], words[2:], strict=False))

    expected = [
        max((len(runs(t) & runs(e)) / len(runs(e)) for e in examples if len(runs(t) & runs(e)) >= 3), default=0.0)
        for t in texts
    ]

    assert example_shares(corpus_of(texts), examples).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("catalog", ["verifiable", "paper"])
def test_an_example_with_one_word_changed_is_a_copy_of_it(catalog: str) -> None:
    examples = [skill.example for skill in load_catalog(catalog).skills]
    changed = []
    for example in examples:
        words = example.split()
        changed += [" ".join([*words[:index], "Zanzibar", *words[index + 1 :]]) for index in range(len(words))]
    kept = "The lamp hummed while nobody in the whole station was looking up."

    found = removals(corpus_of([*changed, kept]), examples=examples, threshold=None)

    assert [r.text_index for r in found if r.why == "repeats an example"] == list(range(len(changed)))


def test_a_text_with_less_than_half_of_an_example_is_none_of_its_copies() -> None:
    example = "I promise that I will water your plants every evening."
    texts = ["I promise that I will stir the soup.", "I promise that I will water your fern."]

    shares = example_shares(corpus_of(texts), [example])

    assert shares.tolist() == [3 / 8, 5 / 8]
    assert [r.text_index for r in removals(corpus_of(texts), examples=[example], threshold=None)] == [1]
    assert shares[0] < FOLLOWS <= shares[1]
