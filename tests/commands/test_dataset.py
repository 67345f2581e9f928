"""The options of `skillmix dataset` that cannot be met."""

from pathlib import Path

import pytest

from skillmix.commands import main
from tests.commands.command_line import EXAMPLE, run

WRONG = {
    "a.yaml demo": "An experiment file cannot be combined with other sources.",
    "a.yaml --k 1 --only-requested": "--k and --only-requested cannot be used with an experiment file.",
    "demo --recipe D(1) --k 1": "--k cannot be used with --recipe.",
    "demo --step one": "--step cannot be used with runs.",
    "demo --shares 1=1": "--shares needs --size, and one part for each k.",
    "demo --k 1 2 --size 9 --shares 1=1": "--shares needs --size, and one part for each k.",
    "demo --size 9 --shares 1=0": "skillmix dataset: --shares: '1=0' is not a list of K=PART such as 1=1,2=3.",
    "demo --size 9 --shares one": "skillmix dataset: --shares: 'one' is not a list of K=PART such as 1=1,2=3.",
    "demo --reserved 2": "skillmix dataset: --reserved: '2' is not a number from 0 to 1.",
    "demo --near-duplicates -0.1": "skillmix dataset: --near-duplicates: '-0.1' is not a number from 0 to 1.",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items(), ids=WRONG.keys())
def test_an_option_that_cannot_be_met_is_named_with_its_value(
    capsys: pytest.CaptureFixture[str], in_folder: Path, words: str, message: str
) -> None:
    main(["import-texts", str(EXAMPLE), "--run", "demo"])
    capsys.readouterr()

    status, out, err = run(capsys, "dataset", *words.split())

    assert (status, out) == (2, "")
    assert err.splitlines()[0] == f"error: {message}"
    assert err.splitlines()[1].startswith("hint: ")
    assert not Path("runs/demo/dataset").exists()
