"""Catalog folders: what is shipped, and every way a stranger's can be wrong."""

import json
import re
from pathlib import Path

import pytest
import yaml

from skillmix import files as yaml_reader
from skillmix.catalog.catalog import Catalog, before_parenthesis, fold_name
from skillmix.catalog.files import load_catalog, shipped_catalogs
from skillmix.errors import UserError
from skillmix.grading.answers import names_skill


@pytest.fixture(scope="module")
def paper() -> Catalog:
    return load_catalog("paper")


def test_the_paper_catalog_has_its_sizes(paper: Catalog) -> None:
    sizes = {p.name: (len(p.train.skills), len(p.held_out.skills)) for p in paper.partitions}

    assert (len(paper.skills), len(paper.topics)) == (104, 100)
    assert sizes == {"category": (54, 50), "tables": (59, 45)}
    assert paper.default_partition == "category"
    assert all(len(p.train.topics) == len(p.held_out.topics) == 50 for p in paper.partitions)
    assert "Regatta, sailing" in paper.topics


def test_names_categories_and_topics_are_the_papers(paper: Catalog, shared: Path) -> None:
    skills = json.loads((shared / "paper/skills.json").read_text(encoding="utf-8"))["skills"]
    topics = json.loads((shared / "paper/topics.json").read_text(encoding="utf-8"))

    assert [(s.name, s.category) for s in paper.skills] == [(s["name"], s["category"]) for s in skills]
    assert list(paper.partition().train.topics) == topics["train"]
    assert list(paper.partition().held_out.topics) == topics["held_out"]
    in_train_table = {s["name"] for s in skills if "7" in s["printed_in"]}
    assert set(paper.partition("tables").train.skills) == in_train_table


def runs_of_six(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", fold_name(text))
    return {tuple(words[i : i + 6]) for i in range(len(words) - 5)}


def test_the_wording_is_our_own(paper: Catalog, shared: Path) -> None:
    skills = json.loads((shared / "paper/skills.json").read_text(encoding="utf-8"))["skills"]
    theirs: set[tuple[str, ...]] = set()
    for skill in skills:
        theirs |= runs_of_six(skill["definition"]) | runs_of_six(skill["example"])

    for skill in paper.skills:
        names = runs_of_six(skill.name)
        for text in (skill.definition, skill.example):
            assert not (runs_of_six(text) & theirs) - names, skill.name


def test_prompts_are_our_own_too(shared: Path) -> None:
    from skillmix.prompts.prompt_set import load_prompts

    theirs: set[tuple[str, ...]] = set()
    for file in (shared / "paper/prompts").glob("*.txt"):
        theirs |= runs_of_six(file.read_text(encoding="utf-8"))

    for name, template in load_prompts("standard").templates.items():
        assert not runs_of_six(template) & theirs, name


def test_examples_show_the_skill_without_naming_it(paper: Catalog) -> None:
    for skill in paper.skills:
        assert not names_skill(skill.example, skill.name), skill.name


def test_every_short_form_is_found(paper: Catalog) -> None:
    for skill in paper.skills:
        assert paper.skill(skill.name) is skill
        assert paper.skill(before_parenthesis(skill.name).upper()) is skill


def test_random_partitions_keep_sizes_or_categories(paper: Catalog) -> None:
    everything = set(paper.partition().side("all").skills)
    for seed in range(20):
        skills = paper.partition(f"random-skills:{seed}")
        categories = paper.partition(f"random-categories:{seed}")

        assert len(skills.train.skills) == 54
        assert set(skills.side("all").skills) == set(categories.side("all").skills) == everything
        sides = [{paper.skill(n).category for n in side.skills} for side in (categories.train, categories.held_out)]
        assert not sides[0] & sides[1]
        assert 40 <= len(categories.train.skills) <= 64
    assert len({paper.partition(f"random-skills:{seed}").train.skills for seed in range(20)}) == 20


def test_excluded_skills_are_not_drawn(paper: Catalog) -> None:
    pool = paper.pool("all", exclude=["common", "irony" if "irony" in paper.exclude else "ad hominem"])

    assert not set(pool.skills) & {*paper.exclude["common"], "ad hominem"}
    assert len(paper.exclude["common"]) == 17


@pytest.mark.parametrize("name", ["nope", "random-skills:", "random-skills:x", "random-other:3"])
def test_an_unknown_partition_names_the_known_ones(paper: Catalog, name: str) -> None:
    with pytest.raises(UserError) as caught:
        paper.partition(name)

    assert "category" in (caught.value.hint or "")


def test_an_unknown_skill_gets_a_suggestion(paper: Catalog) -> None:
    with pytest.raises(UserError) as caught:
        paper.skill("division fallacy")

    assert "fallacy of division" in (caught.value.hint or "")


def converted_paper(shared: Path, folder: Path) -> Path:
    """The paper's exact wording as a catalog folder."""
    skills = json.loads((shared / "paper/skills.json").read_text(encoding="utf-8"))["skills"]
    topics = json.loads((shared / "paper/topics.json").read_text(encoding="utf-8"))
    keys = ("name", "category", "definition", "example")
    documents = {
        "skills": [{key: s[key] for key in keys} for s in skills],
        "topics": topics["train"] + topics["held_out"],
        "partitions": {
            "default": "tables",
            "partitions": {
                "tables": {
                    "train": {"skills": [s["name"] for s in skills if "7" in s["printed_in"]]},
                    "held-out": {"skills": [s["name"] for s in skills if "8" in s["printed_in"]]},
                }
            },
            "topics": {"train": topics["train"], "held-out": topics["held_out"]},
        },
    }
    for name, document in documents.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    return folder


def test_the_papers_exact_wording_loads(shared: Path, tmp_path: Path) -> None:
    catalog = load_catalog(str(converted_paper(shared, tmp_path)))

    assert len(catalog.skills) == 104
    assert catalog.skill("modus ponens").definition.startswith("A syllogism")
    assert len(catalog.partition().train.skills) == 59


GOOD = {
    "skills.yaml": (
        "- {name: a, category: x, definition: d, example: e}\n- {name: b, category: y, definition: d, example: e}\n"
    ),
    "topics.yaml": "- Sewing\n- Knots\n",
    "partitions.yaml": (
        "default: p\npartitions:\n  p: {train: {categories: [x]}, held-out: {skills: [b]}}\n"
        "topics: {train: [Sewing], held-out: [Knots]}\n"
    ),
}


def folder_with(tmp_path: Path, **changes: str | None) -> str:
    for file, content in GOOD.items():
        changed = changes.get(file.partition(".")[0], content)
        if changed is not None:
            (tmp_path / file).write_text(changed, encoding="utf-8")
    return str(tmp_path)


def test_a_small_folder_loads(tmp_path: Path) -> None:
    catalog = load_catalog(folder_with(tmp_path))

    assert [s.name for s in catalog.skills] == ["a", "b"]
    assert catalog.partition().held_out.skills == ("b",)
    assert catalog.name == tmp_path.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"skills": None}, "skills.yaml: There is no file"),
        ({"skills": ""}, "skills.yaml: is empty"),
        ({"skills": "[]"}, "must each have an entry"),
        ({"skills": "- {name: a"}, "skills.yaml: is not valid YAML: line 2"),
        ({"skills": "just text"}, "skills.yaml: 'just text' is not a list"),
        ({"skills": "- {name: a, category: x, definition: d}"}, "skills.yaml: entry 1, example: this key is missing"),
        ({"skills": "- {name: a, category: x, definition: d, example: e, extra: 1}"}, "extra: there is no such key"),
        (
            {"skills": "- {name: 3, category: x, definition: d, example: e}"},
            "entry 1, name: 3 is not text",
        ),
        ({"skills": "- {name: 'a; b', category: x, definition: d, example: e}"}, "without leading or trailing blanks"),
        ({"skills": "- {name: a, name: b, category: x, definition: d, example: e}"}, "'name' is given twice"),
        (
            {"skills": GOOD["skills.yaml"] + "- {name: A, category: x, definition: d, example: e}"},
            "already used by entry 1",
        ),
        ({"skills": "- {name: Topic, category: x, definition: d, example: e}"}, "reserved"),
        ({"skills": "- {name: '?!', category: x, definition: d, example: e}"}, "no letters"),
        ({"skills": "- !!python/object/apply:os.system ['true']"}, "not valid YAML"),
        ({"skills": '- !!int ""'}, "has an invalid value"),
        ({"skills": "- !!bool foo"}, "has an invalid value"),
        ({"skills": "- 2024-13-45"}, "has an invalid value"),
        ({"topics": "[" * 30000 + "]" * 30000}, "nested more than"),
        (
            {"topics": "- Sewing\n- sewing\n- Knots"},
            "topics.yaml, entry 2: the name 'sewing' is already used by entry 1",
        ),
        (
            {"partitions": GOOD["partitions.yaml"].replace("default: p", "default: q")},
            "there is no partition 'q', only p",
        ),
        ({"partitions": GOOD["partitions.yaml"].replace("[x]", "[x, z]")}, "no category 'z'"),
        ({"partitions": GOOD["partitions.yaml"].replace("[b]", "[b, a]")}, "'a' is on both sides"),
        ({"partitions": GOOD["partitions.yaml"].replace("[Knots]", "[Knots, Golf]")}, "no topic 'Golf'"),
        ({"partitions": GOOD["partitions.yaml"].replace("{skills: [b]}", "{}")}, "there is no skill"),
        ({"partitions": GOOD["partitions.yaml"] + "exclude: {c: [nope]}"}, "no skill 'nope'"),
        (
            {"partitions": GOOD["partitions.yaml"] + "entailed: [{skill: a, brings: z, texts: 9, both: 9, source: s}]"},
            "partitions.yaml, entailed: there is no skill 'z'",
        ),
        ({"partitions": GOOD["partitions.yaml"] + "woven: always"}, "partitions.yaml: woven"),
    ],
)
def test_a_faulty_folder_is_refused_with_file_and_entry(
    tmp_path: Path, changes: dict[str, str | None], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        load_catalog(folder_with(tmp_path, **changes))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("skills.yaml", "- {name: a, category: x, defintion: d, example: e}", 'entry 1, defintion: {} "definition"?'),
        ("partitions.yaml", GOOD["partitions.yaml"].replace("default:", "defalt:"), 'defalt: {} "default"?'),
        ("partitions.yaml", GOOD["partitions.yaml"].replace("held-out:", "held_out:"), 'p, held_out: {} "held-out"?'),
        ("partitions.yaml", GOOD["partitions.yaml"].replace("{skills:", "{skils:"), 'skils: {} "skills"?'),
        ("partitions.yaml", GOOD["partitions.yaml"] + "entailed: [{skil: a}]", 'entry 1, skil: {} "skill"?'),
        ("vocabulary.yaml", "Sewing: {allone: [a]}", 'Sewing, allone: {} "alone"?'),
        ("templates.yaml", "a: {fixed: b, slots: c}", 'a, slots: {} "slot"?'),
    ],
)
def test_an_unknown_key_gets_the_nearest_key_of_its_place(
    tmp_path: Path, file: str, content: str, message: str
) -> None:
    folder = folder_with(tmp_path)
    (tmp_path / file).write_text(content, encoding="utf-8")

    with pytest.raises(UserError) as caught:
        load_catalog(folder)

    assert message.format("there is no such key. Did you mean") in caught.value.message


def test_an_unknown_name_gets_the_nearest_name(tmp_path: Path) -> None:
    partitions = GOOD["partitions.yaml"].replace("[Knots]", "[Knot]") + "exclude: {c: [a2]}"
    folder = folder_with(tmp_path, partitions=partitions)
    (tmp_path / "vocabulary.yaml").write_text("Sewin: {alone: [a]}", encoding="utf-8")

    with pytest.raises(UserError) as caught:
        load_catalog(folder)

    assert "no topic 'Knot'. Did you mean \"Knots\"?" in caught.value.message
    assert "no topic 'Sewin'. Did you mean \"Sewing\"?" in caught.value.message


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        skills=GOOD["skills.yaml"] + "- {name: a, category: x, definition: d, example: e}\n",
        topics="- Sewing\n- Knots\n- knots\n",
        partitions=GOOD["partitions.yaml"].replace("[x]", "[x, z]"),
    )

    with pytest.raises(UserError) as caught:
        load_catalog(folder)

    assert "has 3 faults" in caught.value.message
    assert len(caught.value.message.splitlines()) == 4


def test_an_unknown_catalog_names_the_shipped_ones() -> None:
    with pytest.raises(UserError) as caught:
        load_catalog("nowhere")

    assert all(name in (caught.value.hint or "") for name in shipped_catalogs())


def test_the_content_hash_notices_a_changed_word(tmp_path: Path) -> None:
    before = load_catalog(folder_with(tmp_path)).content_hash()
    after = load_catalog(folder_with(tmp_path, skills=GOOD["skills.yaml"].replace("definition: d", "definition: f")))

    assert before != after.content_hash()


def test_a_file_is_parsed_again_only_after_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path)
    parsed: list[str] = []
    parse = yaml_reader.yaml_of

    def counted(text: str, *, source: str) -> object:
        parsed.append(source)
        return parse(text, source=source)

    monkeypatch.setattr(yaml_reader, "yaml_of", counted)

    first = load_catalog(folder)
    assert load_catalog(folder) == first
    assert [Path(source).name for source in parsed] == ["skills.yaml", "topics.yaml", "partitions.yaml"]
    topics = tmp_path / "topics.yaml"
    topics.write_text(topics.read_text(encoding="utf-8") + "# one more line\n", encoding="utf-8")
    assert load_catalog(folder) == first
    assert [Path(source).name for source in parsed[3:]] == ["topics.yaml"]


def test_the_clauses_of_the_template_student_must_fit_the_catalog(tmp_path: Path) -> None:
    clauses = "{a: {fixed: f, slot: 's {topic}'}, z: {fixed: f, slot: s}}"
    (tmp_path / "templates.yaml").write_text(clauses, encoding="utf-8")

    with pytest.raises(UserError) as caught:
        load_catalog(folder_with(tmp_path))

    assert "templates.yaml: there is no skill 'z'" in caught.value.message
    assert "templates.yaml, z, slot: the clause has no {topic}" in caught.value.message


def test_entailed_pairs_and_the_rule_for_woven_are_part_of_the_content_hash(tmp_path: Path) -> None:
    entailed = "entailed: [{skill: a, brings: b, texts: 9, both: 9, source: s}]\n"
    changed = ("", entailed, "woven: required\n", "woven: column\n")
    catalogs = [load_catalog(folder_with(tmp_path, partitions=GOOD["partitions.yaml"] + more)) for more in changed]

    hashes = [catalog.content_hash() for catalog in catalogs]

    assert len(set(hashes)) == 3
    assert hashes[0] == hashes[3]
    assert catalogs[1].pool("all").impossible == {frozenset({"a", "b"})}
