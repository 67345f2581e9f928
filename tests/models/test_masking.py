"""No shape of a key comes through."""

import base64

import pytest

from skillmix.models.servers.masking import Mask
from skillmix.render import without_invisible

SECRET = "sk-live/9f8e7d6c5b4a+3f2e1d0cQWxz=="


@pytest.fixture
def mask() -> Mask:
    mask = Mask()
    mask.add(SECRET)
    return mask


SHAPES = {
    "itself": SECRET,
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64 with one byte before it": base64.b64encode(b"x" + SECRET.encode()).decode(),
    "base64 with two bytes before it": base64.b64encode(b"xy" + SECRET.encode() + b" and more").decode(),
    "base64 for addresses": base64.urlsafe_b64encode(SECRET.encode()).decode(),
    "invisible letters": "\u200b".join(SECRET),
    "escape codes": "\x1b".join(SECRET),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    "before", ["", "the key ", "x" * 290, " " * 19_980], ids=["alone", "in words", "cut", "spaces"]
)
def test_a_line_and_a_reply_hold_no_key_and_keep_the_rest(mask: Mask, shape: str, before: str) -> None:
    line, reply = mask.line(f"{before}{shape} is wrong"), mask.reply(f"{before}{shape}\nis wrong.")

    for shown in (line, reply):
        bare = without_invisible(shown)
        assert not any(shape[start : start + 16] in bare for start in range(len(shape) - 16))
    assert len(line) <= 300
    assert reply.startswith(before) and "[key]" in reply and reply.endswith("\nis wrong.")


def test_what_looks_like_a_key_is_hidden_in_a_line(mask: Mask) -> None:
    assert mask.line("Incorrect API key provided: sk-proj-ab***yz.") == "Incorrect API key provided: [key]."


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
