"""The page of a calibration: texts and replies are shown and never run."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import skillmix
from skillmix.calls import Outcome, Reply, Request
from skillmix.models.scripted import ScriptedModel
from tests.validation.made_sets import entries, entry, write_set

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> \u202eevil"


class Tags(HTMLParser):
    """Collects the tags of a page and their references."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]


def test_a_planted_script_in_a_text_or_a_grading_is_escaped(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ScriptedModel.answer

    def planted(self: ScriptedModel, request: Request) -> Outcome:
        outcome = answer(self, request)
        assert isinstance(outcome, Reply) and request.subject is not None
        skill = request.subject.combination.skills[0]
        return Reply(f"{outcome.text}\nThe {skill} is not there, {EVIL} I say")

    monkeypatch.setattr(ScriptedModel, "answer", planted)
    texts = [entry(0, why=EVIL) | {"text": f"Look: {EVIL}"}]

    made = skillmix.calibrate("scripted:grader", set=write_set(in_folder / "mine.yaml", texts))

    page = (made.folder / "card.html").read_text(encoding="utf-8")
    found = Tags(page)
    assert "Look: &lt;script&gt;alert(1)" in page
    assert "is not there, &lt;script&gt;" in page
    assert not {"script", "img", "iframe", "object"} & set(found.tags)
    assert found.handlers == []
    assert "\u202e" not in page


def test_the_page_needs_no_network_and_forbids_scripts(in_folder: Path) -> None:
    made = skillmix.calibrate("scripted:grader", set=write_set(in_folder / "mine.yaml", entries(20)), rounds=1)

    page = (made.folder / "card.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    outside = [reference for reference in Tags(page).references if not reference.startswith("#")]
    assert outside == ["report.css"]
    assert (made.folder / "report.css").is_file()


def test_the_page_and_the_json_have_the_numbers_of_the_card(in_folder: Path) -> None:
    file = write_set(in_folder / "mine.yaml", [*entries(60), entry(61, disputed=True)])

    made = skillmix.calibrate("scripted:grader?miss=0.3", set=file, rounds=1)

    stored = json.loads((made.folder / "card.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(made.as_json()))
    by_kind = {row["criterion"]: row for row in stored["card"]["by_kind"]}
    assert by_kind["skill"]["sensitivity"]["value"] == made.card.by_kind[0].sensitivity.value
    assert (stored["texts"], stored["disputed"]) == (61, 1)
    page = re.sub(r"<[^>]+>", "", (made.folder / "card.html").read_text(encoding="utf-8"))
    texts = {wrong.known.text for wrong in made.wrong}
    assert f"{len(made.wrong)} points of {len(texts)} texts on which" in page
    assert all(page.count(text) == 1 for text in texts)
    assert "Without disputed texts" in page
    assert "scripted" in page


def test_the_terminal_shows_the_same_card(in_folder: Path) -> None:
    made = skillmix.calibrate("scripted:grader?miss=1", set=write_set(in_folder / "mine.yaml", entries(40)), rounds=1)

    assert "gives the point for the skill to 0% of the texts that show the skill" in " ".join(str(made).split())
    assert "unparseable replies: 0" in str(made)
    assert max(map(len, str(made).splitlines())) <= 100
