"""Code agrees with a writer who knew each skill's definition and example, and nothing of the code."""

from pathlib import Path
from typing import Final

import pytest
import yaml

from skillmix.checkers.passage import passage_of
from skillmix.checkers.registry import CHECKERS

TEXTS: Final[dict[str, dict[str, list[str]]]] = yaml.safe_load(
    (Path(__file__).parent / "blind.yaml").read_text(encoding="utf-8")
)

NOT_YET_BLIND: Final[frozenset[str]] = frozenset()
"""New skills until someone who has not seen their checkers has written texts for them."""


def disagreements(skill: str) -> list[str]:
    return [
        f"{skill}, {said}: {text}"
        for said, texts in TEXTS[skill].items()
        for text in texts
        if (CHECKERS[skill](passage_of(text)) is not None) != (said == "shown")
    ]


def test_every_skill_has_five_texts_of_each_kind() -> None:
    assert set(TEXTS) == set(CHECKERS) - NOT_YET_BLIND
    for texts in TEXTS.values():
        assert {said: len(set(both)) for said, both in texts.items()} == {"shown": 5, "not_shown": 5}


def test_code_and_writer_agree_on_nine_of_ten() -> None:
    differing = [text for skill in TEXTS for text in disagreements(skill)]

    assert len(differing) <= 0.1 * 10 * len(TEXTS), "\n".join(differing)


@pytest.mark.parametrize("skill", TEXTS)
def test_code_and_writer_agree_on_three_of_four_for_each_skill(skill: str) -> None:
    differing = disagreements(skill)

    assert len(differing) <= 0.25 * 10, "\n".join(differing)
