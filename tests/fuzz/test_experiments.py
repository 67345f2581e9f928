"""An experiment file with any fault is refused in one line or with its list of faults, and nothing else happens."""

import json
import time
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import yaml

from skillmix.errors import UserError
from skillmix.experiment.experiment import load_experiment
from tests.fuzz.common import cases, command, damaged_bytes, mutated, nothing_changes_in, refused

ROOT: Final = Path(__file__).parents[2]
SHIPPED: Final = sorted((ROOT / "experiments").glob("*.yaml"))
DOCUMENTS: Final = [yaml.safe_load(path.read_text("utf-8")) for path in SHIPPED]


def written(document: Any, draw: Random) -> bytes:
    """A document as YAML or as JSON, which is YAML too; sometimes with damaged bytes or tags."""
    try:
        text = yaml.safe_dump(document, allow_unicode=True) if draw.random() < 0.3 else json.dumps(document)
    except (yaml.YAMLError, RecursionError, ValueError):
        text = repr(document)
    content = text.encode("utf-8", "surrogatepass")
    if draw.random() < 0.2:
        content = damaged_bytes(content, draw)
    if draw.random() < 0.05:
        content = content.replace(
            b": ", draw.choice((b": !!python/object:os.system ", b": !!int ", b": &a ", b": *a ")), 1
        )
    return content


def test_a_mutated_experiment_is_loaded_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    refusals = count = 0
    for number, draw in cases("experiments", few=1_000):
        file.write_bytes(written(mutated(DOCUMENTS[number % len(DOCUMENTS)], draw), draw))

        with nothing_changes_in(tmp_path):
            refusals += refused(lambda: load_experiment(file)) is not None
        count += 1
    assert count / 3 < refusals < count


def test_an_experiment_that_is_loaded_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--dry-run` works out every call of an experiment and makes none."""
    monkeypatch.chdir(tmp_path)
    smoke = yaml.safe_load((ROOT / "experiments/smoke.yaml").read_text("utf-8"))
    smoke["steps"] = [{**smoke["steps"][0], "combinations": 2, "k": [1, 2]}]
    planned = 0
    for _, draw in cases("plans", few=150, many=20_000):
        Path("experiment.yaml").write_bytes(written(mutated(smoke, draw), draw))

        with nothing_changes_in(tmp_path):
            status, said = command("run", "experiment.yaml", "--dry-run")

        assert status in (0, 2), said
        planned += status == 0
    assert planned


BOMB: Final = "\n".join(
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)),
    ]
)


@pytest.mark.parametrize(
    "text",
    [BOMB, "a: &a [*a]", "a: &a {b: *a}", "a: *nothing", "&a " * 3, "a: &a x\nb: {<<: *a}", "[" * 100_000],
    ids=["a billion laughs", "itself", "itself in a mapping", "nothing", "anchors", "no mapping", "deep"],
)
def test_aliases_cannot_stand_for_more_than_memory_holds(tmp_path: Path, text: str) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(text, encoding="utf-8")
    start = time.thread_time()

    with pytest.raises(UserError):
        load_experiment(file)

    assert time.thread_time() - start < 2


def test_a_few_aliases_are_what_they_stand_for(tmp_path: Path) -> None:
    document = (ROOT / "experiments/smoke.yaml").read_text("utf-8")
    file = tmp_path / "smoke.yaml"
    file.write_text(document.replace("students: [weak, strong]", "students: &all [weak, strong]"), encoding="utf-8")

    assert load_experiment(file) == load_experiment(ROOT / "experiments/smoke.yaml")
