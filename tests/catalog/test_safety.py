"""The catalog of safety probes: mild, non-operational, each with a harmless twin."""

import re
from pathlib import Path

import pytest
import yaml

import skillmix
from skillmix.catalog.catalog import SETTINGS
from skillmix.catalog.combinations import Draw, draw_combinations
from skillmix.catalog.files import load_catalog
from skillmix.errors import UserError

SAFETY = load_catalog("safety")
PROBES = [topic for topic in SAFETY.topics if topic not in SAFETY.controls]
OPERATIONAL = (
    *("how to", "instruction", "step by step", "recipe", "guide", "method", "tutorial", "code", "script"),
    *("weapon", "gun", "knife", "bomb", "explosi", "poison", "drug", "medicin", "alcohol", "kill", "hurt", "harm"),
    *("attack", "threat", "violen", "hack", "malware", "virus", "phish", "password", "credit card", "bank", "money"),
    *(
        "link",
        "click",
        "bank account",
        "home address",
        "phone number",
        "passport",
        "steal",
        "theft",
        "forge",
        "fraud",
        "bribe",
    ),
    *("suicide", "self-harm", "sex", "nude", "child", "religio", "race of", "racis", "ethnic", "gender", "nation"),
    *("immigra", "election", "vote", "politic", "president", "government", "police", "vaccin", "disease", "diagnos"),
    *("break into", "blackmail", "stalk", "spy", "surveil", "revenge", "hate", "slur", "insult", "bully"),
)
"""Words of requests that could help anyone do harm, or that are about real people and groups."""


@pytest.mark.parametrize("text", [*SAFETY.topics, *(f"{s.name} {s.definition} {s.example}" for s in SAFETY.skills)])
def test_no_text_asks_for_anything_operational(text: str) -> None:
    found = [word for word in OPERATIONAL if re.search(rf"\b{re.escape(word)}", text.casefold())]

    assert found == []


@pytest.mark.parametrize("text", ["a guide to locks", "a note with a link to click", "a slur about a neighbour"])
def test_the_list_of_words_finds_what_it_is_for(text: str) -> None:
    assert any(re.search(rf"\b{re.escape(word)}", text.casefold()) for word in OPERATIONAL)


@pytest.mark.parametrize("topic", SAFETY.topics)
def test_no_probe_names_anyone(topic: str) -> None:
    assert topic == topic.lower()  # names would have capital letters
    assert not re.search(r"\d", topic)


def test_every_probe_has_one_control_and_both_are_on_one_side() -> None:
    assert len(PROBES) == len(SAFETY.controls) == 24
    assert set(SAFETY.controls.values()) == set(PROBES)
    for partition in SAFETY.partitions:
        for side in (partition.train, partition.held_out):
            assert {SAFETY.controls[t] for t in side.topics if t in SAFETY.controls} == set(side.topics) & set(PROBES)


def test_the_skills_are_those_of_no_other_shipped_catalog() -> None:
    others = {skill.name for name in ("paper", "verifiable") for skill in load_catalog(name).skills}

    assert len(SAFETY.skills) == 18
    assert not others & {skill.name for skill in SAFETY.skills}


@pytest.mark.parametrize("setting", SETTINGS)
def test_without_skills_a_draw_has_every_topic_once(setting: str) -> None:
    pool = SAFETY.pool(setting)
    drawn = draw_combinations(Draw(pool, setting, 0, 0), len(pool.topics))

    assert sorted(c.topic for c in drawn) == sorted(pool.topics)
    assert {c.skills for c in drawn} == {()}
    assert len({c.id for c in drawn}) == len(drawn)


def test_other_catalogs_have_no_combination_without_skills() -> None:
    pool = load_catalog("paper").pool("all")

    with pytest.raises(UserError, match="k = 0 is not possible"):
        draw_combinations(Draw(pool, "all", 0, 0), 1)


def test_the_hash_of_a_catalog_depends_on_its_controls(tmp_path: Path) -> None:
    shipped = Path(skillmix.__file__).parent / "data" / "safety"
    for file in shipped.glob("*.yaml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert load_catalog(str(tmp_path)).content_hash() == SAFETY.content_hash()

    (tmp_path / "controls.yaml").unlink()

    assert load_catalog(str(tmp_path)).content_hash() != SAFETY.content_hash()
    assert load_catalog(str(tmp_path)).controls == {}


def test_the_faults_of_controls_are_reported_together(tmp_path: Path) -> None:
    shipped = Path(skillmix.__file__).parent / "data" / "safety"
    for file in shipped.glob("*.yaml"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    first, second = PROBES[:2]
    (tmp_path / "controls.yaml").write_text(yaml.safe_dump({first: second, "nowhere": second}), encoding="utf-8")

    with pytest.raises(UserError) as caught:
        load_catalog(str(tmp_path))

    assert "there is no topic 'nowhere'" in str(caught.value)
    assert f"the topic {second!r} occurs 2 times" in str(caught.value)
