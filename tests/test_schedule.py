"""The order in which workers take the tests."""

from pathlib import Path

from tests.schedule import LONGEST_FIRST, TOGETHER, turn_of, unit_of

ROOT = Path(__file__).parents[1]


def test_the_tables_name_tests_that_are_there() -> None:
    for name in (*LONGEST_FIRST, *TOGETHER):
        assert (ROOT / name).exists(), name
    assert len(set(LONGEST_FIRST)) == len(LONGEST_FIRST)


def test_a_worker_does_a_file_as_a_whole_and_the_folder_of_the_reports_too() -> None:
    assert unit_of("tests/steps/test_loop.py::test_a[x::y]") == "tests/steps/test_loop.py"
    assert unit_of("tests/report/test_pages.py::test_a") == unit_of("tests/report/figures/test_x.py::test_b")


def test_what_takes_long_comes_before_everything_else() -> None:
    turns = [turn_of(f"{name}{'test_x.py' * name.endswith('/')}::test_a") for name in LONGEST_FIRST]

    assert turns == list(range(len(LONGEST_FIRST)))
    assert turn_of("src/skillmix/hashing.py::skillmix.hashing.digest") == len(LONGEST_FIRST)
