"""Tables and texts fit a terminal of 100 columns."""

from skillmix.render import WIDTH, panels, side_by_side, wrapped


def test_a_table_that_is_too_wide_repeats_its_names_in_several_tables() -> None:
    header = ["student", *(f"k = {k}" for k in range(1, 9))]
    rows = [["base", *["1.00 [.89, 1.00]"] * 8], ["tuned", *[".50 [.40, .60]"] * 8]]

    text = panels(header, rows, names=1, right=frozenset())

    assert max(map(len, text.splitlines())) <= WIDTH
    tables = text.split("\n\n")
    assert len(tables) == 2
    assert all(table.splitlines()[0].startswith("| student | k = ") for table in tables)
    assert "|  .50 [.40, .60]  |" in text or "| .50 [.40, .60]" in text


def test_two_texts_side_by_side_lose_no_word() -> None:
    left, right = "one two three " * 30, "four five six " * 10

    lines = side_by_side([left], [right]).splitlines()

    assert max(map(len, lines)) <= WIDTH
    assert " ".join(line[2:50] for line in lines).split() == left.split()
    assert " ".join(line[52:] for line in lines).split() == right.split()


def test_a_word_longer_than_a_line_stays_whole() -> None:
    assert "x" * 150 in wrapped(f"see {'x' * 150}")
