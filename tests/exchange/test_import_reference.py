"""Records of the original code: read anew, copies counted once, figures worked out by hand."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.exchange.import_reference import import_reference
from skillmix.scores.scoring import run_scores

GRADED = "graded/by_gpt-4_on_text_1_{vote}_gpt/records.csv"


def laid_out(shared: Path, folder: Path) -> Path:
    """The reference records where the original puts them: three identical votes, conversations for gpt-4 only."""
    students = (
        ("k3_s10_vdefault_r2/gpt-4", "gpt-4-round2-graded-by-gpt-4.csv"),
        ("k3_s10_vdefault_r1/llama2-7b-chat", "llama2-7b-chat-round1-graded-by-gpt-4.csv"),
    )
    for student, file in students:
        for vote in (1, 2, 3):
            target = folder / student / GRADED.format(vote=vote)
            target.parent.mkdir(parents=True)
            shutil.copy(shared / "reference" / file, target)
    shutil.copy(shared / "reference/gpt-4-round2-generations.csv", folder / students[0][0] / "records.csv")
    return folder


def test_the_reference_run_has_the_figures_worked_out_by_hand(shared: Path, in_folder: Path) -> None:
    imported = import_reference(laid_out(shared, in_folder / "original"), "reference")
    scores = {(s.student, str(s.metric)): s for s in run_scores("reference")}

    assert (imported.conversations, imported.texts_from_prompts, imported.unmatched) == (5, 5, 0)
    assert (imported.gradings, imported.copies, sum(imported.unreadable.values())) == (30, 20, 5)
    # gpt-4: 110111, 111111, 011111, 111111, 101111; no skill is named, all texts keep to two sentences.
    for metric, value in (("full_marks", 2 / 5), ("all_skills", 2 / 5), ("skill_fraction", (3 * 2 / 3 + 2) / 5)):
        score = scores["gpt-4", metric]
        assert score.value == pytest.approx(value)
        assert score.one_try == score.bound_low == score.bound_high == score.value
        assert (score.k, score.grader, score.combinations, score.complete, score.ungraded) == (3, "gpt-4", 5, 5, 0)
    # llama2-7b-chat: one empty answer scores 0 without a grader; the other four have no readable grade.
    for metric in ("full_marks", "all_skills", "skill_fraction"):
        score = scores["llama2-7b-chat", metric]
        assert (score.value, score.complete, score.ungraded, score.format_failures) == (0.0, 1, 4, 1)
        assert (score.bound_low, score.bound_high) == (0.0, 0.8)
    wilson = scores["gpt-4", "full_marks"]
    assert (wilson.low, wilson.high) == pytest.approx((0.1176, 0.7693), abs=1e-4)
    assert json.dumps([asdict(score) for score in run_scores("reference")])


def test_importing_again_changes_nothing(shared: Path, in_folder: Path) -> None:
    folder = laid_out(shared, in_folder / "original")
    first = import_reference(folder, "reference")
    scores = run_scores("reference")

    again = import_reference(folder, "reference")

    assert again == first
    assert run_scores("reference") == scores


COLUMNS = ["k", "skills", "topic", "system prompt", "[INST]_0", "[/INST]_0", "model_input_0", "text_0"]


def write_csv(path: Path, rows: list[dict[str, str]], columns: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)


def conversation(text: str = "Answer: Time is a thief.") -> dict[str, str]:
    return {"k": "2", "skills": "metaphor, \nhope, then fear", "topic": "Sewing", "[INST]_0": "Ask", "[/INST]_0": text}


def graded(*values: int) -> dict[str, str]:
    names = ("metaphor", "hope, then fear", "Pertains to Sewing", "Text makes sense", "At most one sentence")
    table = "\n".join(f"| {name} | {value} |" for name, value in zip(names, values, strict=True))
    return {
        "k": "2",
        "skills": "metaphor,  \nhope, then fear",
        "topic": "Sewing",
        "[INST]_0": "Grade",
        "[/INST]_0": table,
    }


def test_different_votes_count_and_copies_do_not(in_folder: Path) -> None:
    student = in_folder / "o/k2_s1_vdefault_r1/m"
    write_csv(student / "records.csv", [conversation()], COLUMNS)
    for vote, values in enumerate([(1, 1, 1, 1, 1), (0, 1, 1, 1, 1), (0, 1, 1, 1, 1)], start=1):
        write_csv(student / GRADED.format(vote=vote), [graded(*values)], COLUMNS)

    imported = import_reference(in_folder / "o", "r")

    assert (imported.gradings, imported.copies) == (3, 1)
    full = run_scores("r")[0]
    # Two different votes are left, one for and one against: a tie decides nothing.
    assert (full.value, full.ungraded, full.bound_low, full.bound_high) == (None, 1, 0.0, 1.0)


def test_generations_of_several_folders_belong_to_one_combination(in_folder: Path) -> None:
    for number, value in ((1, 0), (2, 1)):
        student = in_folder / f"o/k2_s1_vdefault_r{number}/m"
        write_csv(student / "records.csv", [conversation(f"Answer: Text {number}.")], COLUMNS)
        write_csv(student / GRADED.format(vote=1), [graded(1, value, 1, 1, 1)], COLUMNS)

    import_reference(in_folder / "o", "r")

    full = run_scores("r")[0]
    assert (full.value, full.one_try, full.combinations) == (1.0, 0.5, 1)


def test_a_combination_drawn_twice_keeps_its_gradings_apart(in_folder: Path) -> None:
    student = in_folder / "o/k2_s1_vdefault_r1/m"
    write_csv(student / "records.csv", [conversation("Answer: One."), conversation("Answer: Two.")], COLUMNS)
    write_csv(student / GRADED.format(vote=1), [graded(0, 1, 1, 1, 1), graded(1, 1, 1, 1, 1)], COLUMNS)

    import_reference(in_folder / "o", "r")

    full = run_scores("r")[0]
    assert (full.value, full.one_try, full.combinations) == (1.0, 0.5, 1)


def test_a_grading_of_an_unknown_text_is_counted(in_folder: Path) -> None:
    student = in_folder / "o/k2_s1_vdefault_r1/m"
    write_csv(student / "records.csv", [conversation()], COLUMNS)
    write_csv(student / GRADED.format(vote=1), [graded(1, 1, 1, 1, 1) | {"topic": "Knots"}], COLUMNS)

    assert import_reference(in_folder / "o", "r").unmatched == 1


@pytest.mark.parametrize("cut", [lambda line: line.rpartition(",")[0], lambda line: f"{line},more"])
def test_a_record_with_too_few_or_too_many_cells_is_named(in_folder: Path, cut: Callable[[str], str]) -> None:
    path = in_folder / "o/k2_s1_vdefault_r1/m/records.csv"
    write_csv(path, [conversation("Answer: One."), conversation("Answer: Two.")], COLUMNS)
    lines = path.read_text(encoding="utf-8").rstrip().split("\n")
    path.write_text("\n".join([*lines[:-1], cut(lines[-1])]), encoding="utf-8")

    with pytest.raises(UserError, match="record 2: "):
        import_reference(in_folder / "o", "r")


def test_a_byte_order_mark_is_no_part_of_a_column(in_folder: Path) -> None:
    student = in_folder / "o/k2_s1_vdefault_r1/m"
    write_csv(student / "records.csv", [conversation()], COLUMNS)
    path = student / "records.csv"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert import_reference(in_folder / "o", "r").conversations == 1


def test_students_that_differ_by_case_only_are_refused(in_folder: Path) -> None:
    for name in ("GPT-4", "gpt-4"):
        write_csv(in_folder / f"o/k2_s1_vdefault_r1/{name}/records.csv", [conversation()], COLUMNS)

    with pytest.raises(UserError, match="differ only in case"):
        import_reference(in_folder / "o", "r")


def test_a_reserved_skill_name_is_refused(in_folder: Path) -> None:
    rows = [conversation() | {"skills": "metaphor, \nTopic"}]
    write_csv(in_folder / "o/k2_s1_vdefault_r1/m/records.csv", rows, COLUMNS)

    with pytest.raises(UserError, match="reserved"):
        import_reference(in_folder / "o", "r")


def test_a_record_without_turns_is_refused(in_folder: Path) -> None:
    columns = ["model_input_0", "skills", "topic"]
    rows = [{"model_input_0": "i", "skills": "metaphor", "topic": "Sewing"}]
    write_csv(in_folder / "o/k1_s1_vdefault_r1/m/records.csv", rows, columns)

    with pytest.raises(UserError, match="no prompt and reply"):
        import_reference(in_folder / "o", "r")


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b'skills,topic,model_input_0\n"open'])
def test_a_file_that_is_no_record_is_refused(in_folder: Path, content: bytes) -> None:
    path = in_folder / "o/k2_s1_vdefault_r1/m/records.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)

    with pytest.raises(UserError, match=r"records\.csv"):
        import_reference(in_folder / "o", "r")


def test_a_folder_without_records_is_refused(in_folder: Path) -> None:
    with pytest.raises(UserError, match="There are no records"):
        import_reference(in_folder, "r")
    with pytest.raises(UserError, match="no folder"):
        import_reference(in_folder / "nowhere", "r")
