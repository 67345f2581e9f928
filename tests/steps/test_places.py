"""Steps with a catalog and a partition of their own: draws, rows, data sets and what they refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.catalog.catalog import Catalog
from skillmix.catalog.combinations import Combination, Draw, combination_of
from skillmix.catalog.files import load_catalog
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.experiment.experiment import Experiment, experiment_of, load_experiment
from skillmix.experiment.plan import cells_of, place_of
from skillmix.models.lineage_files import read_dataset_file, read_model_file
from skillmix.report.records import ReportOptions
from skillmix.report.write import report
from skillmix.runs.run import open_run
from skillmix.scores.cells import CellScore
from skillmix.scores.scoring import run_scores
from skillmix.steps.run import run_experiment
from tests.catalog.cells import cells_folder

BESIDE = "new-figure-beside-trained"
EVAL = {
    "stage": "evaluate",
    "students": ["base"],
    "graders": ["judge"],
    "settings": ["held-out"],
    "k": [2],
    "combinations": 4,
    "generations": 1,
}
DATA = {"stage": "dataset", "writer": "base", "graders": ["judge"], "near_duplicates": None, "exact_duplicates": "keep"}


def document(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "places",
        "catalog": cells_folder(Path("cells"), figures=9, kinds=3),
        "leakage": {"reserved": 0.2, "shown": "count"},
        "students": {"base": {"model": "scripted:student?skill=1"}},
        "graders": {"judge": {"model": "scripted:grader", "rounds": 1}},
        "steps": list(steps),
        **more,
    }


def written(*steps: dict[str, Any], **more: Any) -> Path:
    path = Path("places.yaml")
    path.write_text(yaml.safe_dump(document(*steps, **more)), encoding="utf-8")
    return path


def ended(*steps: dict[str, Any], **more: Any) -> list[CellScore]:
    assert run_experiment(written(*steps, **more)).is_complete
    return [score for score in run_scores("places") if score.metric == "full_marks"]


def cells_catalog() -> Catalog:
    return load_catalog("cells")


def test_a_student_under_two_partitions_has_two_rows(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = ended(
        EVAL | {"name": "one", "partition": "nested:1"},
        EVAL | {"name": "two", "partition": "nested:2"},
        EVAL | {"name": "default"},
    )

    assert [score.setting for score in scores] == [
        "held-out under nested:1",
        "held-out under nested:2",
        "held-out",
    ]
    capsys.readouterr()
    assert main(["scores", "places", "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["metric"] == "full_marks"]
    assert [(row["setting"], row["partition"]) for row in rows] == [
        ("held-out", "nested:1"),
        ("held-out", "nested:2"),
        ("held-out", None),
    ]
    held_out = {n: set(cells_catalog().partition(f"nested:{n}").held_out.skills) for n in (1, 2)}
    for cell in open_run("places").cells[:2]:
        assert all(set(c.skills) <= held_out[int(str(cell.partition)[-1])] for c in cell.combinations)


def test_a_grade_step_reads_the_texts_of_a_step_with_its_own_partition(in_folder: Path) -> None:
    write: dict[str, Any] = {
        "name": "write",
        "stage": "generate",
        "students": ["base"],
        "k": [1],
        "partition": "nested:1",
    }
    write |= {"settings": ["new-words"], "combinations": 3, "generations": 1}
    scores = ended(write, {"name": "grade", "stage": "grade", "of": ["write"], "graders": ["judge"]})

    assert [(s.setting, s.partition, s.complete) for s in scores] == [("new-words under nested:1", "nested:1", 3)]


def page_text() -> str:
    return report(["places"], options=ReportOptions(figures=False)).page.read_text(encoding="utf-8")


def test_a_report_names_partitions_only_where_there_are_several(in_folder: Path) -> None:
    path = written(EVAL | {"name": "one"}, partition="nested:1")
    assert run_experiment(path).is_complete
    one = page_text()
    assert "under nested:" not in one

    ended(EVAL | {"name": "one"}, EVAL | {"name": "two", "partition": "nested:2"}, partition="nested:1")
    two = page_text()
    assert "held-out under nested:2" in two and "under nested:1" not in two


def test_a_step_may_draw_from_another_catalogue(in_folder: Path) -> None:
    scores = ended(
        EVAL | {"name": "cells"},
        EVAL | {"name": "paper", "catalog": "paper", "settings": ["train"], "exclude": ["common"]},
        exclude=["figure 0 with 0a"],
    )

    assert [(s.setting, s.partition) for s in scores] == [("held-out", None), ("train-without-common in paper", None)]
    assert [str(s.catalog) for s in scores] == ["cells", "paper"]
    train = set(load_catalog("paper").partition().train.skills)
    (cell,) = [cell for cell in open_run("places").cells if cell.step == "paper"]
    assert all(set(c.skills) <= train for c in cell.combinations)


def test_catalogues_of_one_run_agree_on_what_a_skill_is(in_folder: Path) -> None:
    other = Path(cells_folder(Path("other"), figures=9, kinds=3))
    skills = yaml.safe_load((other / "skills.yaml").read_text(encoding="utf-8"))
    skills[0]["definition"] = "Another."
    (other / "skills.yaml").write_text(yaml.safe_dump(skills), encoding="utf-8")

    with pytest.raises(UserError, match="other: the skill 'figure 0 with 0a' differs from the one in cells"):
        load_experiment(written(EVAL | {"name": "one", "catalog": "other"}))


def test_unknown_names_are_found_for_each_step_before_anything_runs(in_folder: Path) -> None:
    path = written(
        EVAL | {"name": "one", "partition": "nested:1", "settings": ["new-word"]},
        EVAL | {"name": "two", "partition": "nestd:1"},
        EVAL | {"name": "three", "catalog": "papr"},
        EVAL | {"name": "four", "settings": ["new-words"]},
        DATA | {"name": "five", "k": [2], "target": 3, "pool": BESIDE},
        EVAL | {"name": "six", "settings": ["heldout"], "exclude": ["nothing"]},
    )
    with pytest.raises(UserError) as caught:
        load_experiment(path)
    shown = [line.strip() for line in caught.value.message.splitlines()[1:]]

    assert [fault.split(":")[0] for fault in shown] == [
        "steps.one.settings.1",
        "steps.two.partition",
        "steps.three.catalog",
        "steps.four.settings.1",
        "steps.five.pool",
        "steps.six.exclude",
        "steps.six.settings.1",
    ]
    assert "has no group 'new-word'. Did you mean" in shown[0]
    assert 'Did you mean "new-words"' in shown[0]
    assert "kinds has no further groups, but not 'new-figure-beside-trained'" in shown[4]


def test_a_step_that_repeats_the_place_of_the_experiment_has_none_of_its_own(in_folder: Path) -> None:
    repeated = {"partition": "nested:1", "catalog": "cells"}
    with_place = experiment_of(document(EVAL | {"name": "a"} | repeated, partition="nested:1"), source="a")
    without = experiment_of(document(EVAL | {"name": "a"}, partition="nested:1"), source="a")

    assert with_place == without
    assert not {"catalog", "partition", "pool"} & with_place.model_dump()["steps"][0].keys()


def combinations_of(name: str) -> list[Combination]:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(f"runs/places/{name}/dataset/rows.parquet").to_pylist()
    return [combination_of(list(row["skills"]), row["topic"]) for row in rows]


def test_data_sets_follow_the_groups_of_their_partition(in_folder: Path) -> None:
    data = DATA | {"partition": "nested:1", "validation": 0.0}
    ended(
        data | {"name": "d12", "recipe": "D(1,2)", "target": {1: 60, 2: 25}},
        data | {"name": "dose", "k": [2], "target": 12, "pool": BESIDE},
        {"name": "both", "stage": "dataset", "of": ["d12", "dose"], "partition": "nested:1", "near_duplicates": None},
        EVAL | {"name": "eval", "partition": "nested:1", "settings": [BESIDE, "train"], "combinations": 20},
    )
    partition = cells_catalog().partition("nested:1")
    singles = [c for c in combinations_of("d12") if c.k == 1]
    composed = [c for c in combinations_of("d12") if c.k == 2]
    doses = combinations_of("dose")

    assert {s for c in singles for s in c.skills} - set(partition.train.skills)
    assert {c.topic for c in singles} & partition.held_out_topics
    assert all(set(c.skills) <= set(partition.train.skills) and c.topic in partition.train.topics for c in composed)
    new = set(partition.side("new-figures").skills)
    assert all(len(new.intersection(c.skills)) == 1 and c.topic in partition.train.topics for c in doses)
    assert len(doses) == 12
    evaluated = {c.id for cell in open_run("places").cells for c in cell.combinations}
    assert evaluated.isdisjoint(c.id for name in ("d12", "dose", "both") for c in combinations_of(name))
    files = {name: read_dataset_file(Path(f"runs/places/{name}/dataset")) for name in ("d12", "dose", "both")}
    assert {name: (file.partition, file.groups) for name, file in files.items() if file} == {
        "d12": ("nested:1", []),
        "dose": ("nested:1", [BESIDE]),
        "both": ("nested:1", [BESIDE]),
    }
    card = Path("runs/places/dose/dataset/README.md").read_text(encoding="utf-8")
    assert f"no held-out skill at k > 1, except in combinations of {BESIDE}" in card


def test_a_joined_data_set_refuses_texts_of_another_partition(in_folder: Path) -> None:
    path = written(
        DATA | {"name": "dose", "k": [2], "target": 12, "pool": BESIDE, "partition": "nested:1"},
        {"name": "joined", "stage": "dataset", "of": ["dose"], "partition": "nested:2", "near_duplicates": None},
    )
    with pytest.raises(UserError):
        run_experiment(path)


def loaded(*steps: dict[str, Any], **more: Any) -> tuple[Experiment, Catalog]:
    experiment = experiment_of(document(*steps, **more), source="places.yaml")
    return experiment, load_catalog(experiment.catalog, *experiment.other_catalogs)


def test_a_student_is_compared_with_the_partition_of_the_step(in_folder: Path) -> None:
    ended(DATA | {"name": "d2", "k": [2], "target": 12, "partition": "nested:1"})
    tuned = {"base": {"model": "scripted:student"}, "tuned": {"model": "scripted:student?skill=1"}}
    tuned["tuned"] |= {"tuned_from": "base", "trained_on": "runs/places/d2/dataset"}
    more = {"name": "second", "students": tuned}
    step = EVAL | {"name": "eval", "students": ["tuned"]}

    with pytest.raises(UserError, match="tuned was trained on data of the partition nested:1, but step eval"):
        run_experiment(written(step | {"partition": "nested:2"}, **more))
    assert run_experiment(written(step | {"partition": "nested:1"}, **more)).is_complete
    seen = run_experiment(
        written(step | {"partition": "nested:2", "allow_trained": True}, **(more | {"name": "third"}))
    )
    assert seen.is_complete
    assert all(score.seen_pairs is None for score in run_scores("second"))
    assert all(score.seen_pairs is not None for score in run_scores("third"))


def test_a_step_draws_from_its_own_place_and_others_from_that_of_the_experiment(in_folder: Path) -> None:
    own = EVAL | {"name": "own", "catalog": "paper", "partition": "random-skills:4", "settings": ["train"]}
    experiment, catalog = loaded(EVAL | {"name": "eval"}, own, partition="nested:3", exclude=["figure 0 with 0a"])
    places = [
        place_of(cell, experiment, catalog) for s in experiment.steps for cell in s.undrawn_cells(experiment.steps)
    ]

    assert [(p.catalog.name, p.partition.name, len(p.exclude)) for p in places] == [
        ("cells", "nested:3", 1),
        ("paper", "random-skills:4", 0),
    ]


def test_all_combinations_and_numbers_by_group_are_those_of_the_place_of_a_step(in_folder: Path) -> None:
    step = EVAL | {
        "name": "own",
        "catalog": cells_folder(Path("cells"), figures=9, kinds=3),
        "partition": "nested:1",
        "settings": ["held-out", BESIDE],
        "combinations": {"held-out": "all", BESIDE: {2: 3}},
    }
    experiment, catalog = loaded(EVAL | {"name": "default"}, step, catalog="paper")
    cells = [cell for cell in cells_of(experiment, catalog) if cell.step == "own"]

    undrawn = next(experiment.steps[1].undrawn_cells(experiment.steps))
    side = place_of(undrawn, experiment, catalog).pool("held-out")
    every = Draw(side=side, setting="held-out", k=2, seed=experiment.seed).total
    assert [(cell.label, len(cell.combinations)) for cell in cells] == [
        ("held-out in cells under nested:1", every),
        (f"{BESIDE} in cells under nested:1", 3),
    ]
    assert all(side.holds(combination.skills) for combination in cells[0].combinations)


def test_the_command_catalog_shows_every_group(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cells_folder(Path("cells"), figures=9, kinds=3)
    assert main(["catalog", folder, "--partition", "nested:1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["partitions"]["nested:1"]
    assert main(["catalog", folder, "--partition", "nested:1"]) == 0
    page = " ".join(capsys.readouterr().out.split())

    partition = cells_catalog().partition("nested:1")
    assert set(shown) == set(partition.settings) - {"all"}
    for name, side in shown.items():
        assert side["skills"] == list(partition.side(name).skills) and side["topics"] == list(
            partition.side(name).topics
        )
        assert f"{name}: {len(side['skills'])} skills" in page
    assert shown[BESIDE]["one"] == list(partition.side("new-figures").skills)
    assert "all: 36 skills, 8 topics" in page

    assert main(["catalog", folder, "--partition", "nestd:1"]) == 2
    assert main(["combinations", folder, "--partition", "nested:1", "--setting", "new-word", "--k", "1"]) == 2
    assert 'Did you mean "new-words"' in capsys.readouterr().err


def test_rows_on_train_cells_of_any_partition_are_split_by_reserved_sets(in_folder: Path) -> None:
    ended(EVAL | {"name": "one", "partition": "nested:1", "settings": ["train", "new-words"], "combinations": 15})
    parts = [s for s in run_scores("places", by_sets=True) if s.metric == "full_marks"]

    assert [(s.setting, s.sets) for s in parts] == [
        ("train under nested:1", "all"),
        ("train under nested:1", "reserved"),
        ("train under nested:1", "seen"),
        ("new-words under nested:1", "all"),
    ]


def test_a_report_shows_steps_with_another_catalogue(in_folder: Path) -> None:
    ended(
        EVAL | {"name": "cells"},
        EVAL | {"name": "paper", "catalog": "paper", "settings": ["train"], "exclude": ["common"]},
    )

    assert "train-without-common in paper" in page_text()


def test_a_model_has_the_partition_of_its_data_sets_in_its_lineage(in_folder: Path, small_model: Path) -> None:
    students = {"base": {"model": "scripted:student?skill=1"}, "small": {"model": f"local:{small_model}"}}
    train = {"stage": "train", "base": "small", "steps": 1, "batch": 2}
    path = written(
        DATA | {"name": "d1", "k": [1], "target": 3, "partition": "nested:1"},
        DATA | {"name": "d2", "k": [1], "target": 3, "partition": "nested:2"},
        train | {"name": "one", "data": ["d1"]},
        train | {"name": "both", "data": ["d1", "d2"]},
        students=students,
    )
    assert run_experiment(path).is_complete
    models = {name: read_model_file(Path(f"runs/places/{name}/model")) for name in ("one", "both")}

    assert {name: file.partition for name, file in models.items() if file} == {"one": "nested:1", "both": "kinds"}
