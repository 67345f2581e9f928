"""No shape of a key comes through."""

import base64
import json
from urllib.parse import quote

import pytest

from skillmix.models.servers.masking import Mask

SECRET = "sk-live/9f8e7d6c5b4a+3f2e1d0cQWxz=="


@pytest.fixture
def mask() -> Mask:
    mask = Mask()
    mask.add(SECRET)
    return mask


SHAPES = {
    "whole": SECRET,
    "first half": SECRET[:17],
    "second half": SECRET[17:],
    "a third": SECRET[10:22],
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64 with one byte before it": base64.b64encode(b"x" + SECRET.encode()).decode(),
    "base64 with two bytes before it": base64.b64encode(b"xy" + SECRET.encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(SECRET.encode()).decode(),
    "hexadecimal digits": SECRET.encode().hex(),
    "percents where needed": quote(SECRET, safe=""),
    "percents everywhere": "".join(f"%{ord(letter):02X}" for letter in SECRET),
    "JSON": json.dumps(SECRET).replace("/", "\\/"),
    "escapes": "".join(f"\\u{ord(letter):04x}" for letter in SECRET),
    "some escapes": "".join(f"\\u{ord(c):04x}" if place % 5 == 0 else c for place, c in enumerate(SECRET)),
    "entities": "".join(f"&#{ord(letter)};" for letter in SECRET),
    "capitals": SECRET.upper(),
    "backwards": SECRET[::-1],
    "letter by letter": "-".join(SECRET),
    "invisible letters": "\u200b".join(SECRET),
    "escape codes": "\x1b".join(SECRET),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    "before", ["", "the key ", "x" * 290, " " * 19_985], ids=["alone", "in words", "cut", "spaces"]
)
def test_a_line_holds_no_shape_of_a_key(mask: Mask, shape: str, before: str) -> None:
    line = mask.line(f"{before}{shape} is wrong")

    bare = "".join(letter for letter in line.lower() if letter.isalnum())
    for start in range(0, len(shape) - 12):
        part = "".join(letter for letter in shape[start : start + 12].lower() if letter.isalnum())
        assert len(part) < 8 or part not in bare
    assert len(line) <= 300


@pytest.mark.parametrize("shape", ["whole", "first half", "second half", "base64", "hexadecimal digits"])
def test_a_reply_holds_no_key_and_keeps_the_rest(mask: Mask, shape: str) -> None:
    assert mask.reply(f"Answer: {SHAPES[shape]} is a fish.").startswith("Answer: [key]")
    assert mask.reply(f"Answer: {SHAPES[shape]} is a fish.").endswith(" is a fish.")


def test_what_holds_no_key_is_left_alone(mask: Mask) -> None:
    text = "Answer: The needle, that patient fish — particularly uncharacteristic — swims on."

    assert mask.reply(text) is text
    assert mask.line(text) == text


def test_a_key_that_is_a_word_changes_no_reply() -> None:
    mask = Mask()
    mask.add("EMPTY")

    assert mask.reply("The empty nest.") == "The empty nest."
    assert mask.line("bad key EMPTY") == "bad key [key]"


def test_terminals_get_nothing_to_obey(mask: Mask) -> None:
    line = mask.line("\x1b[2J\x1b]0;title\x07 a\u202eb\u2066c\n\rerror: d\x9b31m\ud800\u2028e")

    assert line == "[2J]0;title abc error: d31m e"


@pytest.mark.parametrize("between", ["\u200b", "\u2060", "\ufe0f", "\u00ad", "\u034f", "\x00", "\x1b", "\U000e0041"])
def test_a_key_with_characters_between_its_letters_that_nobody_sees_is_hidden(mask: Mask, between: str) -> None:
    mixed = between.join(SECRET)

    assert mask.reply(f"It is – {mixed}.\nA second line.") == "It is – [key].\nA second line."
    assert "9f8e7d6c5b4a" not in mask.line(f"the key {mixed} is wrong")


def test_a_reply_without_a_key_keeps_its_invisible_characters(mask: Mask) -> None:
    assert mask.reply("❤\ufe0f and zero\u200bwidth") == "❤\ufe0f and zero\u200bwidth"
