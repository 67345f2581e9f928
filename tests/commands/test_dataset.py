"""The options of `skillmix dataset` that cannot be met."""

from pathlib import Path

import pytest

from skillmix.commands import main
from tests.commands.command_line import EXAMPLE, run

WRONG = {
    "a.yaml demo": "2 sources are given, one of them an experiment file.",
    "demo --recipe D(1) --k 1": "The recipe D(1) already determines k.",
    "demo --shares 1=1": "--shares '1=1' needs --size, and one part for each k.",
    "demo --k 1 2 --size 9 --shares 1=1": "--shares '1=1' needs --size, and one part for each k.",
    "demo --size 9 --shares 1=0": "--shares '1=0' has a k below 1, or a part that is not above 0.",
    "demo --size 9 --shares one": "--shares 'one' is not a list of K=PART.",
    "demo --reserved 2": "--reserved 2 is not a share.",
    "demo --near-duplicates -0.1": "--near-duplicates -0.1 is not a share.",
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
