"""Prompt sets: ours, the paper's own files unchanged, and faulty ones."""

import csv
import re
from pathlib import Path

import pytest
import yaml

from skillmix.catalog.catalog import Catalog, Partition, Side, Skill
from skillmix.catalog.combinations import Combination, combination_of
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError
from skillmix.grading.reader import read_grades
from skillmix.prompts.prompt_set import load_prompts, prompt_set
from skillmix.prompts.rubric import rubric_of

PAPER_PHRASES = {
    "skill": "Correctly illustrates {skill}",
    "topic": "Pertains to {topic}",
    "sense": "Text makes sense",
    "length": "At most {limit}",
}


def test_our_prompts_say_everything() -> None:
    catalog, prompts = load_catalog("paper"), load_prompts("standard")
    combination = combination_of(["metaphor", "red herring", "ad hominem"], "Regatta, sailing")

    first, second = prompts.student_prompts(catalog, combination)

    for name in combination.skills:
        assert name in first and catalog.skill(name).definition in first and catalog.skill(name).example in first
    assert "Regatta, sailing" in first
    assert "two sentences" in second
    for text in (first, second):
        assert "'Answer:'" in text and "'Explanation:'" in text


@pytest.mark.parametrize("variant", load_prompts("standard").grader_variants)
def test_every_grader_prompt_has_its_whole_rubric(variant: str) -> None:
    catalog, prompts = load_catalog("paper"), load_prompts("standard")
    combination = combination_of(["metaphor", "red herring"], "Sewing")

    prompt = prompts.grader_prompt(catalog, combination, answer="A {topic} text", variant=variant)

    rubric = rubric_of(combination.skills, "Sewing", phrases=prompts.phrases)
    lines = prompt.splitlines()
    assert [c.phrase for c in rubric.criteria if f"- {c.phrase}" not in lines] == []
    assert "A {topic} text" in prompt


@pytest.mark.parametrize(
    ("variant", "form", "has_examples"),
    [("gpt", "table", True), ("claude", "'|'", True), ("llama2", "Point earned: 1", False)],
)
def test_the_grader_prompts_ask_for_three_forms_of_a_reply(variant: str, form: str, has_examples: bool) -> None:
    catalog, prompts = load_catalog("paper"), load_prompts("standard")

    prompt = prompts.grader_prompt(catalog, combination_of(["metaphor"], "Sewing"), answer="A text", variant=variant)

    assert form in prompt
    assert (catalog.skill("metaphor").example in prompt) == has_examples


def test_a_reply_in_the_prompts_own_words_is_readable() -> None:
    prompts = load_prompts("standard")
    rubric = rubric_of(["metaphor", "accident (fallacy)"], "The Ottoman Empire", phrases=prompts.phrases)
    rows = "\n".join(f"| {criterion.phrase} | 1 |" for criterion in rubric.criteria)
    lines = "\n".join(f"{c.phrase}: it does. Point earned: 1" for c in rubric.criteria)

    assert read_grades(rubric, rows).points == (1.0,) * 5
    assert read_grades(rubric, lines + "\nGrade: 5").points == (1.0,) * 5


def reference_catalog(shared: Path) -> Catalog:
    with (shared / "reference/skills.csv").open(encoding="utf-8", newline="") as stream:
        skills = tuple(
            Skill(row["skill"], row["category"], row["definition"], row["example"]) for row in csv.DictReader(stream)
        )
    side = Side(tuple(s.name for s in skills), ("Sewing",))
    return Catalog("reference", skills, ("Sewing",), (Partition("p", side, side),), "p")


def test_the_papers_templates_render_to_the_letter(shared: Path, tmp_path: Path) -> None:
    """Prompts as the original sent them, from its own files: slots, layout and rubric are the same."""
    for file in (shared / "paper/prompts").glob("*.txt"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "criteria.yaml").write_text(yaml.safe_dump(PAPER_PHRASES), encoding="utf-8")
    prompts, catalog = load_prompts(str(tmp_path)), reference_catalog(shared)
    csv.field_size_limit(1 << 30)

    def rows(name: str) -> list[dict[str, str]]:
        with (shared / "reference" / name).open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))

    def plain(text: str) -> str:
        return " ".join(text.replace("’", "'").split())

    for generated, graded in zip(
        rows("gpt-4-round2-generations.csv"), rows("gpt-4-round2-graded-by-gpt-4.csv"), strict=True
    ):
        names = tuple(name.strip() for name in re.split(r",\s*\n", generated["skills"]))
        combination = Combination("id", names, generated["topic"])

        first, second = prompts.student_prompts(catalog, combination)
        grader = prompts.grader_prompt(catalog, combination, answer=generated["text_1"], variant="gpt")

        assert plain(first) == plain(generated["user_0"])
        assert plain(second) == plain(generated["user_1"])
        assert plain(grader) == plain(graded["user_0"])


GOOD = {"generate-1.txt": "{topic} {skills} {definitions}", "generate-2.txt": "{limit}"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"generate-2.txt": "{limit}"}, "generate-1.txt: the file is missing"),
        ({**GOOD, "generate-1.txt": ""}, "the file is empty"),
        ({**GOOD, "generate-1.txt": "{topic} {skills}"}, "missing slot: definitions"),
        ({**GOOD, "generate-2.txt": "{limit} {nonsense}"}, "unknown slot: nonsense"),
        ({**GOOD, "generate-2.txt": "{limit} {topc}"}, r'unknown slot: topc. Did you mean "topic"\?'),
        ({**GOOD, "generate-2.txt": "{limit} {answer}"}, "unknown slot: answer"),
        ({**GOOD, "grade-gpt.txt": "{topic} {skills} {definitions} {limit} {answer}"}, "missing slot: criteria"),
        ({**GOOD, "criteria.yaml": "skill: 'no slot'"}, "criteria.yaml: skill must have {skill}"),
        ({**GOOD, "criteria.yaml": "skil: '{skill}'"}, r'skil: there is no such key. Did you mean "skill"\?'),
        (
            {**GOOD, "criteria.yaml": "outcomes: {complys: a}"},
            r'outcomes, complys: there is no such key. Did you mean "complies"\?',
        ),
        ({**GOOD, "examples.yaml": "- {topc: a}"}, r'entry 1, topc: there is no such key. Did you mean "topic"\?'),
        ({**GOOD, "grade-mine.txt": "x"}, "grade-mine.txt: missing slot: topic"),
        ({**GOOD, "grade_mine.txt": "x"}, "unknown names: grade_mine.txt"),
        ({**GOOD, "grade-.txt": "x", "grade-Mine.txt": "x"}, "unknown names: grade-.txt, grade-Mine.txt"),
        ({**GOOD, "generate-0.txt": "{definitions}"}, "generate-0.txt: missing slot: skills"),
        ({**GOOD, "generate-0.txt": "{skills}", "generate-1.txt": "{skills}"}, "generate-1.txt: missing slot: topic"),
        ({**GOOD, "criteria.yaml": "sense: '{sense}'"}, "criteria.yaml: sense must have no slot"),
    ],
)
def test_a_faulty_prompt_set_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")

    with pytest.raises(UserError, match=message):
        load_prompts(str(tmp_path))


def test_a_misspelled_file_of_a_prompt_set_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "generat-1.txt").write_text("x", encoding="utf-8")

    with pytest.raises(UserError) as caught:
        load_prompts(str(tmp_path))

    assert '"generate-1.txt"' in (caught.value.hint or "")


def test_a_turn_before_the_first_shows_the_catalogs_examples(tmp_path: Path) -> None:
    files = {
        "generate-0.txt": "Show {skills}.",
        "generate-1.txt": "Now about {topic}.",
        "generate-2.txt": "{limit}\n{examples}",
        "examples.yaml": (
            "- {topic: Keys, skills: [{name: simile, definition: d, example: As cold as ice.}], answers: [one, two]}"
        ),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    catalog, prompts = load_catalog("verifiable"), load_prompts(str(tmp_path))
    combination = combination_of(["epizeuxis", "diacope"], "Kites")
    examples = [catalog.skill(name).example for name in combination.skills]

    assert prompts.lead_turns(catalog, combination) == [
        (f"Show {'; '.join(combination.skills)}.", f"Answer: {' '.join(examples)}")
    ]
    first, second = prompts.student_prompts(catalog, combination)
    assert first == "Now about Kites."
    assert second.split("\n")[1:] == [f"- {n}: {e}" for n, e in zip(combination.skills, examples, strict=True)]
    assert [answer for _, answer in prompts.worked_turns()] == [
        "Answer: As cold as ice.",
        "Answer: one",
        "Answer: two",
    ]
    assert load_prompts("standard").lead_turns(catalog, combination) == []


def test_every_grader_file_is_a_variant(tmp_path: Path) -> None:
    own = "{topic} {skills} {definitions} {limit} {criteria}: {answer}"
    for name, content in {**GOOD, "grade-gpt.txt": own, "grade-a.txt": own, "grade-0.2-b.txt": f"Mine: {own}"}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    prompts, combination = load_prompts(str(tmp_path)), combination_of(["metaphor"], "Golf")

    assert set(load_prompts("standard").grader_variants) >= {"gpt", "claude", "llama2"}
    assert prompts.grader_variants == ["gpt", "0.2-b", "a"]
    prompt = prompts.grader_prompt(load_catalog("paper"), combination, answer="a text", variant="0.2-b")
    assert prompt.startswith("Mine: Golf metaphor") and prompt.endswith(": a text")


@pytest.mark.parametrize(
    ("name", "variants"), [("mine", "none"), ("standard", ", ".join(load_prompts("standard").grader_variants))]
)
def test_an_unknown_variant_is_an_error_that_lists_those_of_the_set(name: str, variants: str) -> None:
    prompts = prompt_set("mine", GOOD) if name == "mine" else load_prompts(name)
    combination = combination_of(["metaphor"], "Golf")

    with pytest.raises(UserError, match=f"Prompt set '{name}' has no grader prompt 'other'") as caught:
        prompts.grader_prompt(load_catalog("paper"), combination, answer="a", variant="other")

    assert caught.value.hint == f"Its grader prompts: {variants}. To add this one, write grade-other.txt."


def test_an_unknown_prompt_set_names_the_shipped_ones() -> None:
    with pytest.raises(UserError) as caught:
        load_prompts("nowhere")

    assert "standard" in (caught.value.hint or "")
