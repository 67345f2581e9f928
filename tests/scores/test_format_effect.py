"""Planted cases: format explains a difference, hides skill, or has no part in it."""

from skillmix.catalog.combinations import Combination
from skillmix.scores.cells import Cell, CellKey
from skillmix.scores.comparisons import FormatEffect, compare_cells, format_effect

FULL, NONE = (True,) * 5, (False, *(True,) * 4)
N = 60


def student(name: str, *, valid: int, full: int) -> Cell:
    """One text for each combination: the first ones have a valid format, and the first of these have full marks."""
    order = [(7 * number) % N for number in range(N)] if name == "tuned" else range(N)
    numbers = list(order)
    statuses = tuple(("fine",) if number < valid else ("no marker",) for number in numbers)
    points = tuple((FULL,) if number < full else (NONE,) for number in numbers)
    combinations = tuple(Combination(f"c{i:02}", ("a", "b"), "t") for i in range(N))
    return Cell(CellKey("r", name, "g", "all", 2), combinations, points, statuses)  # type: ignore[arg-type]


def effect(first: Cell, second: Cell) -> FormatEffect:
    students, cells = (first.key.student, second.key.student), {c.key: c for c in (first, second)}
    (row,) = compare_cells("r", *students, cells)
    return format_effect(students, ["r"], first.key[2:], cells, row.found)


def test_format_explains_a_difference_if_valid_texts_are_equally_good() -> None:
    result = effect(student("base", valid=20, full=10), student("tuned", valid=60, full=30))

    assert result.role == "explains"
    assert result.among_valid is not None and result.among_valid.value == 0.0


def test_too_few_valid_texts_leave_the_skill_of_the_base_unknown() -> None:
    result = effect(student("base", valid=1, full=0), student("tuned", valid=60, full=30))

    assert (result.role, result.among_valid) == ("hides skill", None)
    assert (result.first.valid, result.first.written) == (1, 60)


def test_format_has_no_part_in_a_difference_if_valid_texts_differ_as_well() -> None:
    result = effect(student("base", valid=40, full=2), student("tuned", valid=60, full=50))

    assert result.role is result.words("base", "tuned") is None
    assert result.among_valid is not None and result.among_valid.low > 0


def test_format_has_no_part_in_a_difference_between_students_of_equal_format() -> None:
    result = effect(student("base", valid=60, full=20), student("tuned", valid=60, full=34))

    assert result.role is None


def test_format_explains_nothing_if_there_is_no_difference() -> None:
    result = effect(student("base", valid=20, full=10), student("tuned", valid=60, full=12))

    assert result.role is None
