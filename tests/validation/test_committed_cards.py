"""The cards in docs/cards agree with the page, and the card of code can be reproduced."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import skillmix
from skillmix.validation.calibration import criterion_rows

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/graders.md").read_text(encoding="utf-8")
CARDS = sorted((ROOT / "docs/cards").glob("*.json"))


def stored(file: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return card


@pytest.mark.parametrize("file", CARDS, ids=lambda file: file.stem)
def test_the_page_names_the_card_and_its_size(file: Path) -> None:
    card = stored(file)

    assert f"(cards/{file.name})" in PAGE
    assert f"{card['texts']} texts" in PAGE


def test_code_still_has_the_card_that_the_page_shows(in_folder: Path) -> None:
    made_by = ROOT / "bench/calibrate_code.py"
    subprocess.run([sys.executable, str(made_by), "blind.yaml"], check=True, capture_output=True)

    made = skillmix.calibrate("rules:", set="blind.yaml", catalog="verifiable")

    card = stored(ROOT / "docs/cards/rules.json")
    assert made.as_json()["set_hash"] == card["set_hash"]
    assert [row.units for row in made.card.by_kind] == [row["units"] for row in card["card"]["by_kind"]]
    for row in criterion_rows(made.card):
        assert f"| {' | '.join(row)} |" in PAGE
