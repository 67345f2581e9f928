"""How a text is split into pieces, and what counts as punctuation between two words."""

import pytest

from skillmix.checkers.passage import has_mark, passage_of


def pieces_of(text: str) -> list[str]:
    return [" ".join(word.text for word in piece) for s in passage_of(text).sentences for piece in s.pieces]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("He muttered 'go home now' and left.", ["He muttered", "go home now and left"]),
        ("She paid 5,000 for it, then left.", ["She paid 5,000 for it", "then left"]),
        ("We met at 10:30 - by chance.", ["We met at 10:30", "by chance"]),
        ("It's the dog's bowl.", ["It's the dog's bowl"]),
    ],
)
def test_marks_divide_a_sentence_into_pieces(text: str, pieces: list[str]) -> None:
    assert pieces_of(text) == pieces


def test_an_opening_quote_ends_a_piece_but_is_no_punctuation_between_words() -> None:
    text = "He muttered 'go home, now' and left."
    words = passage_of(text).sentences[0].words

    assert not has_mark(text, words[1], words[2])
    assert has_mark(text, words[3], words[4])
