"""Changes from the command line."""

import pytest

from skillmix.errors import UserError
from skillmix.experiment.experiment import with_changes

DOCUMENT = {"seed": 0, "budget": None, "steps": [{"name": "eval", "k": [1, 2]}, {"name": "report"}]}


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("seed=7", ["seed"], 7),
        ("budget.max_usd=2.5", ["budget", "max_usd"], 2.5),
        ("steps.eval.k=[3]", ["steps", 0, "k"], [3]),
        ("steps.2.name=end", ["steps", 1, "name"], "end"),
        ("students.a.model=openai:m@http://h/v1?x=1", ["students", "a", "model"], "openai:m@http://h/v1?x=1"),
        ("seed=", ["seed"], None),
    ],
)
def test_a_change_reaches_its_place_and_nothing_else(change: str, path: list[str | int], value: object) -> None:
    document: object = with_changes(DOCUMENT, [change])

    found: object = document
    for part in path:
        found = found[part]  # type: ignore[index]
    assert found == value
    assert DOCUMENT["steps"] == [{"name": "eval", "k": [1, 2]}, {"name": "report"}]


@pytest.mark.parametrize("change", ["seed", "=3", "steps.nobody.k=1", "steps.9.k=1", "seed.deeper=1", "seed=[1"])
def test_a_faulty_change_is_refused_with_a_hint(change: str) -> None:
    with pytest.raises(UserError) as caught:
        with_changes(DOCUMENT, [change])

    assert caught.value.hint


def test_yaml_that_makes_objects_is_refused() -> None:
    with pytest.raises(UserError, match="not valid YAML"):
        with_changes(DOCUMENT, ["seed=!!python/object/apply:os.system [ls]"])
