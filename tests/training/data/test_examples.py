"""Files of conversations: what is wrong with them is said with its place."""

import json
from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.training.data.chat_formats import Turn
from skillmix.training.data.examples import Conversation, read_conversations

GOOD = [{"role": "user", "content": "Ask"}, {"role": "assistant", "content": " Say\n"}]


def test_rows_are_read_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"messages": GOOD + GOOD}) + "\n\n" + json.dumps({"messages": GOOD}), encoding="utf-8")

    found = read_conversations(file, name="d1")

    turn = Turn("Ask", " Say\n")
    assert found == [Conversation("d1:1", (turn, turn)), Conversation("d1:3", (turn,))]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{", r"a.jsonl:1 is not JSON"),
        ("[]", r"a.jsonl:1 has no messages"),
        (json.dumps({"messages": []}), "the roles are missing"),
        (json.dumps({"messages": GOOD[:1]}), "the roles are user"),
        (
            json.dumps({"messages": [{"role": "system", "content": "x"}, *GOOD]}),
            "the roles are system, user, assistant",
        ),
        (json.dumps({"messages": [GOOD[0], {"role": "assistant", "content": " "}]}), "a message is empty"),
        (json.dumps({"messages": [GOOD[0], {"role": "assistant", "content": None}]}), "a message is empty"),
    ],
)
def test_what_cannot_be_learned_from_is_an_error(row: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(row, encoding="utf-8")

    with pytest.raises(UserError, match=complaint):
        read_conversations(tmp_path / "a.jsonl")


def test_a_file_that_is_not_there_or_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe")

    for name, complaint in (("none.jsonl", "There is no file"), ("b.jsonl", "not UTF-8")):
        with pytest.raises(UserError, match=complaint):
            read_conversations(tmp_path / name)


def row(content: str) -> str:
    said = '{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "' + content + '"}'
    return '{"messages": [' + said + "]}"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[" * 100_000, "nested too deeply"),
        (row("half \\ud800"), "lone surrogate"),
        (row("x").replace('"x"', "1" * 5_000), "is not JSON"),
        ('{"messages": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_row_that_nothing_can_be_made_of_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(f"{row('fine')}\n{line}\n", encoding="utf-8")

    with pytest.raises(UserError, match=f":2.*{said}"):
        read_conversations(file)


def test_a_byte_order_mark_is_not_part_of_the_first_row(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(row("fine"), encoding="utf-8-sig")

    assert len(read_conversations(file)) == 1
