"""Golden files: what must not change by accident. `make golden` writes them again."""

import os
from pathlib import Path

import pytest

from skillmix.catalog.combinations import combination_of
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.prompts.prompt_set import load_prompts

GOLDEN = Path(__file__).parent / "golden"


def compare(name: str, content: str) -> None:
    path = GOLDEN / name
    if os.environ.get("SKILLMIX_GOLDEN") == "write":
        path.write_text(content, encoding="utf-8")
    assert content == path.read_text(encoding="utf-8")


def test_combinations_are_those_of_the_committed_file(capsys: pytest.CaptureFixture[str]) -> None:
    main(["combinations", "paper", "--setting", "held-out", "--k", "5", "--n", "100", "--seed", "0", "--json"])

    compare("combinations-paper-held-out-k5-n100-seed0.json", capsys.readouterr().out)


@pytest.mark.parametrize("k", [1, 3])
def test_prompts_as_sent(k: int) -> None:
    catalog, prompts = load_catalog("paper"), load_prompts("standard")
    combination = combination_of(["metaphor", "modus ponens", "accident (fallacy)"][:k], "Regatta, sailing")

    turns = prompts.student_prompts(catalog, combination)
    grading = [
        prompts.grader_prompt(catalog, combination, answer="The wind keeps its own counsel.", variant=variant)
        for variant in prompts.grader_variants
    ]

    compare(f"prompts-k{k}.txt", "\n\n════════\n\n".join([*turns, *grading]) + "\n")
