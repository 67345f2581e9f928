import json
from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.exchange.import_texts import import_texts
from skillmix.scores.scoring import run_scores
from tests.runs.databases import rewrite_experiment

ALL_ONES = "| metaphor | 1 |\n| topic | 1 |\n| sense | 1 |\n| length | 1 |"


def line(**changes: object) -> dict[str, object]:
    return {"skills": ["metaphor"], "topic": "Sewing", "student": "base", "text": "Time is a thief."} | changes


def write(folder: Path, *lines: object) -> Path:
    file = folder / "texts.jsonl"
    file.write_text("\n".join(json.dumps(entry) for entry in lines), encoding="utf-8")
    return file


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def test_texts_and_gradings_become_a_scored_run(in_folder: Path) -> None:
    file = write(in_folder, line(gradings={"g": [ALL_ONES]}), line(text="", gradings={}))

    imported = import_texts(file, "mine", catalog="paper")

    assert (imported.conversations, imported.gradings, imported.new) == (2, 1, 3)
    full = run_scores("mine")[0]
    assert (full.run, full.student, full.grader, full.k, full.setting) == ("mine", "base", "g", 1, "imported")
    assert (full.value, full.combinations, full.one_try, full.format_failures) == (1.0, 1, 0.5, 1)
    assert (full.catalog, full.partition, full.seed) == ("paper", None, None)


def test_the_last_turn_of_a_conversation_is_graded(in_folder: Path) -> None:
    turns = messages("ask", "Answer: One metaphor.", "improve", "Answer: Time is a thief.\nExplanation: x")
    file = write(in_folder, line(text=None, messages=turns, gradings={"g": [ALL_ONES]}))

    import_texts(file, "mine", catalog="paper")

    assert run_scores("mine")[0].value == 1.0


def test_the_same_file_twice_changes_nothing_and_a_longer_one_extends(in_folder: Path) -> None:
    first = line(gradings={"g": [ALL_ONES]})
    import_texts(write(in_folder, first), "mine", catalog="paper")

    again = import_texts(write(in_folder, first), "mine", catalog="paper")
    longer = import_texts(write(in_folder, first, line(text="Another.")), "mine", catalog="paper")

    assert (again.new, longer.new) == (0, 1)


def test_a_changed_text_is_refused_not_overwritten(in_folder: Path) -> None:
    import_texts(write(in_folder, line()), "mine", catalog="paper")

    with pytest.raises(UserError, match="another reply"):
        import_texts(write(in_folder, line(text="Changed.")), "mine", catalog="paper")


def test_another_catalog_is_another_run(in_folder: Path) -> None:
    import_texts(write(in_folder, line()), "mine", catalog="paper")
    rewrite_experiment("mine", {"name": "other"})

    with pytest.raises(UserError, match="exists with another"):
        import_texts(write(in_folder, line()), "mine", catalog="paper")


def test_the_criteria_of_a_prompt_set_are_read_when_scoring(in_folder: Path) -> None:
    prompts = in_folder / "mine"
    prompts.mkdir()
    (prompts / "generate-1.txt").write_text("{topic} {skills} {definitions}", encoding="utf-8")
    (prompts / "generate-2.txt").write_text("{limit}", encoding="utf-8")
    (prompts / "criteria.yaml").write_text("skill: 'Device present: {skill}'\nsense: Hangs together", encoding="utf-8")
    reply = "| Device present: metaphor | 1 |\n| topic | 1 |\n| Hangs together | 1 |"
    file = write(in_folder, line(gradings={"g": [reply]}))

    import_texts(file, "mine-run", catalog="paper", prompts=str(prompts))
    import_texts(file, "standard-run", catalog="paper")

    assert run_scores("mine-run")[0].value == 1.0
    assert run_scores("standard-run")[0].value is None


def test_short_names_and_spelling_are_resolved(in_folder: Path) -> None:
    file = write(in_folder, line(skills=["Complex Question", "red-herring"], topic="sewing"))

    import_texts(file, "mine", catalog="paper")

    from skillmix.runs.run import open_run

    with open_run("mine").read() as journal:
        (combination,) = journal.combinations().values()
    assert "complex question (loaded question with implicit assumption)" in combination.skills
    assert combination.topic == "Sewing"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (line(skills=["no such skill"]), "line 1: No skill named"),
        (line(topic="Nowhere"), "line 1: No topic named"),
        (line(skills=[]), "needs different skills"),
        (line(skills=["metaphor", "Metaphor"]), "different skills"),
        (line(student="Big Model"), "not a valid name for a student"),
        (line(gradings={"GPT 4": []}), "not a valid name for a grader"),
        (line(text=None), "either text or messages"),
        (line(messages=messages("a", "b")), "either text or messages"),
        (line(text=None, messages=messages("a")), "alternate"),
        (line(text=None, messages=[]), "alternate"),
        (line(extra=1), "extra: there is no such key"),
        ({"skils": ["a"], "topic": "b", "student": "s", "text": "t"}, r'skils: .* Did you mean "skills"\?'),
        (
            line(text=None, messages=[{"rol": "user", "content": "c"}]),
            r'messages, entry 1, rol: .* Did you mean "role"\?',
        ),
        (line(skills=["metafor"]), r'No skill named .* Did you mean "metaphor"\?'),
        (line(text=7), "text: 7 is not text"),
        (line(skills=None), "line 1: skills: "),
        (line(skills=[None]), "line 1: skills, entry 1: "),
        (line(topic=None), "line 1: topic: "),
        (line(student=None), "line 1: student: "),
        (line(text=None, messages=None), "line 1: give either text or messages"),
        (line(text=None, messages=[{"role": "user", "content": None}]), "line 1: messages, entry 1, content: "),
        (line(gradings=None), "line 1: gradings: "),
        (line(gradings={"g": None}), "line 1: gradings, g: "),
        (line(gradings={"g": [None]}), "line 1: gradings, g, entry 1: "),
        ([1, 2], "line 1: "),
        ("text", "line 1: "),
    ],
)
def test_a_faulty_line_is_named_and_nothing_is_stored(in_folder: Path, entry: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        import_texts(write(in_folder, entry), "mine", catalog="paper")

    assert not (in_folder / "runs").exists()


def test_all_faulty_lines_are_named_at_once(in_folder: Path) -> None:
    file = write(in_folder, *[line(topic="Nowhere")] * 30)

    with pytest.raises(UserError) as caught:
        import_texts(file, "mine", catalog="paper")

    assert "has 30 faults" in caught.value.message
    assert "line 20:" in caught.value.message
    assert "and 10 more" in caught.value.message


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00binary", b"{not json"])
def test_a_file_that_is_no_jsonl_is_refused(in_folder: Path, content: bytes) -> None:
    (in_folder / "bad.jsonl").write_bytes(content)

    with pytest.raises(UserError):
        import_texts(in_folder / "bad.jsonl", "mine", catalog="paper")


def test_a_conflict_in_the_middle_stores_nothing(in_folder: Path) -> None:
    from skillmix.runs.run import open_run

    import_texts(write(in_folder, line()), "mine", catalog="paper")
    two = [line(topic="Knots"), line(text="Changed.")]

    with pytest.raises(UserError):
        import_texts(write(in_folder, *two), "mine", catalog="paper")

    with open_run("mine").read() as journal:
        assert len(list(journal.calls("generate"))) == 1


def test_other_line_separators_stay_inside_a_text(in_folder: Path) -> None:
    file = in_folder / "t.jsonl"
    file.write_text("\ufeff" + json.dumps(line(text="One\u2028Two\x85Three"), ensure_ascii=False), encoding="utf-8")

    assert import_texts(file, "mine", catalog="paper").conversations == 1


def test_a_key_given_twice_is_refused(in_folder: Path) -> None:
    file = in_folder / "t.jsonl"
    file.write_text(json.dumps(line()).replace('"text"', '"text": "x", "text"'), encoding="utf-8")

    with pytest.raises(UserError, match="given twice"):
        import_texts(file, "mine", catalog="paper")


def test_a_student_with_empty_texts_only_scores_zero_under_every_grader(in_folder: Path) -> None:
    lines = [line(gradings={"g": [ALL_ONES]}), line(student="mute", text="..."), line(student="mute", text="")]

    import_texts(write(in_folder, *lines), "mine", catalog="paper")

    scores = {s.student: s for s in run_scores("mine") if s.metric == "full_marks"}
    assert (scores["mute"].grader, scores["mute"].value, scores["mute"].format_failures) == ("g", 0.0, 2)


@pytest.mark.parametrize("name", ["Bad Name", "", "..", "a/B", "a/..", "."])
def test_a_bad_run_name_is_refused(in_folder: Path, name: str) -> None:
    with pytest.raises(UserError):
        import_texts(write(in_folder, line()), name, catalog="paper")
