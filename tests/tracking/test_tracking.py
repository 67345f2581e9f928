"""Trackers get the scores of a run, change none of its steps, and cannot stop it."""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

import skillmix.tracking as module
from skillmix.api import run as run_document
from skillmix.commands import main
from skillmix.errors import UserError
from skillmix.experiment.experiment import experiment_of
from skillmix.runs.run import open_run
from skillmix.scores.scoring import run_scores
from skillmix.tracking import TRACKERS, TrackedPart, Tracking, require_trackers, score_points

STEP = {"name": "e", "stage": "evaluate", "students": ["s"], "graders": ["g"], "settings": ["all"]}


def document(**more: Any) -> dict[str, Any]:
    return {
        "name": "r",
        "students": {"s": {"model": "scripted:student"}},
        "graders": {"g": {"model": "scripted:grader", "rounds": 1}},
        "steps": [{**STEP, "k": [1, 2], "combinations": 3, "generations": 1}],
        **more,
    }


class Remembering:
    """A tracker that keeps everything in memory."""

    made: ClassVar[list["Remembering"]] = []

    def __init__(self, part: TrackedPart, facts: Mapping[str, str]) -> None:
        self.part = part
        self.facts = facts
        self.points: list[tuple[int, dict[str, float]]] = []
        self.has_ended = False
        self.made.append(self)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self.points.append((step, dict(values)))

    def end(self) -> None:
        self.has_ended = True


class Failing(Remembering):
    """A tracker whose server is gone after the first point."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        super().log(values, step=step)
        raise ConnectionError("the server is gone\x1b[2J\nsecond line")


@pytest.fixture
def remembering(monkeypatch: pytest.MonkeyPatch) -> type[Remembering]:
    monkeypatch.setitem(TRACKERS, "tensorboard", Remembering)
    monkeypatch.setitem(TRACKERS, "wandb", Failing)
    monkeypatch.setattr("skillmix.tracking.find_spec", lambda name: name)
    Remembering.made.clear()
    return Remembering


@pytest.mark.usefixtures("remembering")
def test_without_the_setting_no_tracker_is_opened(in_folder: Path) -> None:
    run_document(document())

    assert Remembering.made == []
    assert not (in_folder / "runs/r/tracking").exists()
    assert "track" not in (in_folder / "runs/r/experiment.yaml").read_text(encoding="utf-8")


@pytest.mark.usefixtures("remembering")
def test_a_tracker_gets_every_score_over_k(in_folder: Path) -> None:
    run_document(document(track=["tensorboard"]))

    (tracker,) = Remembering.made
    scores = run_scores(open_run("r"))
    assert (tracker.part.run, tracker.part.name, tracker.has_ended) == ("r", "scores", True)
    assert [step for step, _ in tracker.points] == [1, 2]
    for k, values in tracker.points:
        own = {f"{s.metric}/s/g/all": s.value for s in scores if s.k == k}
        assert {name: value for name, value in values.items() if name in own} == own


@pytest.mark.usefixtures("remembering")
def test_trackers_change_no_step(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run_document(document())
    record = first._run.finished("e")
    capsys.readouterr()

    second = run_document(document(track=["tensorboard"]))

    assert second.scores == first.scores
    assert second._run.finished("e") == record
    assert "e: finished in an earlier run; 18 calls found" in capsys.readouterr().err
    assert len(Remembering.made) == 1


@pytest.mark.usefixtures("remembering")
def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = run_document(document(track=["wandb", "tensorboard"]))

    failing, remembering = Remembering.made
    assert made.is_complete
    assert (len(failing.points), len(remembering.points)) == (1, 2)
    lines = [line for line in capsys.readouterr().err.splitlines() if "wandb failed" in line]
    assert lines == [r"wandb failed, and the run continues without it: ConnectionError: the server is gone\x1b[2J"]


@pytest.mark.usefixtures("remembering")
def test_only_finite_numbers_are_logged(tmp_path: Path) -> None:
    with Tracking(["tensorboard"], TrackedPart("r", "p", tmp_path), {}) as opened:
        opened.log({"a": 1, "b": None, "c": float("nan"), "d": "text", "e": float("inf")}, step=4)

    assert Remembering.made[0].points == [(4, {"a": 1})]


def test_a_run_without_outcomes_or_scores_has_no_points() -> None:
    assert score_points([]) == {}


def test_a_missing_package_is_an_error_that_names_the_extra_before_anything_is_made(
    in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)

    with pytest.raises(UserError) as caught:
        run_document(document(track=["mlflow", "wandb"]))

    assert "skillmix[mlflow,wandb]" in str(caught.value.hint)
    assert not (in_folder / "runs").exists()
    require_trackers([])


def test_unknown_trackers_and_a_step_of_their_folder_are_refused() -> None:
    with pytest.raises(UserError, match="track"):
        experiment_of(document(track=["aim"]), source="x")
    steps = [{**STEP, "name": "tracking", "k": [1]}]
    with pytest.raises(UserError, match="the name is reserved for a folder of the run"):
        experiment_of(document(track=["wandb"], steps=steps), source="x")
    assert experiment_of(document(steps=steps), source="x").track == []


def test_a_part_keeps_its_key_until_its_folder_is_deleted(tmp_path: Path) -> None:
    part = TrackedPart("r", "m1", tmp_path / "tracking")

    first = part.key("wandb")

    assert part.key("wandb") == first
    assert part.key("mlflow") != first
    (tmp_path / "tracking/wandb-m1.id").unlink()
    assert part.key("wandb") != first


def logged(names: list[str], folder: Path) -> None:
    """Two points, an interruption, and a third point."""
    part = TrackedPart("r", "m1", folder)
    with Tracking(names, part, {"base": "b"}) as opened:
        opened.log({"answers": 2.0}, step=1)
        opened.log({"answers": 1.5}, step=2)
    with Tracking(names, part, {"base": "b"}) as opened:
        opened.log({"answers": 1.0}, step=3)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged(["tensorboard"], tmp_path)

    points = []
    for file in sorted((tmp_path / "tensorboard/m1").iterdir()):
        events = EventAccumulator(str(file)).Reload()
        points += [(e.step, events.Tensors("answers")[n].tensor_proto.float_val[0])
                   for n, e in enumerate(events.Tensors("answers"))]  # fmt: skip
    assert points == [(1, 2.0), (2, 1.5), (3, 1.0)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_curves_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is an extra")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logged(["mlflow"], tmp_path)

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("skillmix").experiment_id])
    history = client.get_metric_history(found.info.run_id, "answers")
    assert [(point.step, point.value) for point in history] == [(1, 2.0), (2, 1.5), (3, 1.0)]
    assert (found.data.tags["base"], found.info.status) == ("b", "FINISHED")


def stored_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: after 7 bytes, parts in blocks of 32 KiB, each with checksum, length and kind."""
    block, place, record = 2**15, 7, b""
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_files_for_one_run_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is an extra")
    from wandb.proto.wandb_internal_pb2 import Record

    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)

    logged(["wandb"], tmp_path)

    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert {file.name for file in files} == {f"run-{(tmp_path / 'wandb-m1.id').read_text(encoding='utf-8')}.wandb"}
    values = []
    for file in files:
        for raw in stored_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(raw)
            row = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            values += [(row["step"], row["answers"])] if "answers" in row else []
    assert sorted(values) == [("1", "2"), ("2", "1.5"), ("3", "1")]


def test_help_and_dry_run_need_no_tracker(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    (in_folder / "r.yaml").write_text(yaml.safe_dump(document(track=["wandb"])), encoding="utf-8")

    assert main(["run", "r.yaml", "--dry-run"]) == 0
    assert "scripted" in capsys.readouterr().out
