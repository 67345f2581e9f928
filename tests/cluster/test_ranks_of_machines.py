"""What the ranks of a training on a cluster are told, and the folders that they have on machines of their own."""

from dataclasses import replace
from pathlib import Path

import pytest

from skillmix.cluster import rank_folder, rank_group
from skillmix.cluster.folder_files import folder_files, kept_folder
from skillmix.cluster.rank_actor import RankPlace
from skillmix.cluster.rank_group import LostRank, _count, _environments, run_on_ranks
from skillmix.errors import UserError
from skillmix.models.checkpoints import Checkpoint
from skillmix.runs.leases.rank_work import RankWork
from skillmix.training.rank_job import steps_saved


def test_ranks_of_one_machine_see_each_others_gpus() -> None:
    places = [
        RankPlace("n1", "10.0.0.1", ("2",), 4001),
        RankPlace("n2", "10.0.0.2", ("0",), 4002),
        RankPlace("n1", "10.0.0.1", ("3",), 4003),
    ]

    first, second, third = _environments(places, has_gpus=True)

    assert [one["RANK"] for one in (first, second, third)] == ["0", "1", "2"]
    assert [one["LOCAL_RANK"] for one in (first, second, third)] == ["0", "0", "1"]
    assert first["CUDA_VISIBLE_DEVICES"] == third["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert second["CUDA_VISIBLE_DEVICES"] == "0"
    assert {one["MASTER_ADDR"] for one in (first, second, third)} == {"10.0.0.1"}
    assert {one["MASTER_PORT"] for one in (first, second, third)} == {"4001"}
    assert {one["WORLD_SIZE"] for one in (first, second, third)} == {"3"}


def test_ranks_of_one_machine_without_gpus_need_no_network() -> None:
    places = [RankPlace("n1", "10.0.0.1", (), 4001), RankPlace("n1", "10.0.0.1", (), 4002)]

    environments = _environments(places, has_gpus=False)

    assert {one["MASTER_ADDR"] for one in environments} == {"127.0.0.1"}
    assert all(one["SKILLMIX_DEVICE"] == "cpu" and "CUDA_VISIBLE_DEVICES" not in one for one in environments)


def checkpoint(folder: Path, steps: int) -> Path:
    path = folder / "checkpoints" / f"step-{steps:08d}"
    path.mkdir(parents=True)
    (path / "part-0.safetensors").write_bytes(b"weights" * steps)
    (path / "state.json").write_text("{}", encoding="utf-8")
    return path


def test_a_held_checkpoint_outlives_its_removal(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 3)
    (tmp_path / "checkpoints" / "step-00000009.partial").mkdir()
    assert rank_folder.last_checkpoint(tmp_path) == path.name

    sizes = rank_folder.hold(tmp_path, path.name)
    for file in path.iterdir():
        file.unlink()

    assert sizes == {f"held/{path.name}/part-0.safetensors": 21, f"held/{path.name}/state.json": 2}
    assert rank_folder.read_part(tmp_path, f"held/{path.name}/part-0.safetensors", 7, 100) == b"weights" * 2
    rank_folder.release(tmp_path)
    assert not (tmp_path / "held").exists()
    assert rank_folder.hold(tmp_path, "step-00000099") == {}, "training has removed it meanwhile"


def test_a_training_goes_on_in_a_folder_with_what_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLMIX_CACHE", str(tmp_path / "cache"))
    path = checkpoint(tmp_path / "drivers", 4)
    files = folder_files(path, ["part-0.safetensors", "state.json"], is_seen=False)
    kept = kept_folder(files)
    kept.mkdir(parents=True)
    for file in path.iterdir():
        (kept / file.name).write_bytes(file.read_bytes())
    folder = rank_folder.own_folder("key")
    (folder / "checkpoints" / "step-00000007").mkdir(parents=True)

    rank_folder.set_up(folder, [rank_folder.GivenFolder("checkpoints/step-00000004", files)])

    assert rank_folder.last_checkpoint(folder) == "step-00000004"
    assert [step.name for step in (folder / "checkpoints").iterdir()] == ["step-00000004"], "older ones are gone"
    assert not kept.exists()


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    assert steps_saved(tmp_path) == 0
    checkpoint(tmp_path, 2)
    checkpoint(tmp_path, 12)
    (tmp_path / "checkpoints" / "step-00000020").mkdir()
    (tmp_path / "checkpoints" / "step-00000030.partial").mkdir()
    (tmp_path / "checkpoints" / "step-00000030.partial" / "state.json").touch()

    assert steps_saved(tmp_path) == 12


class Offers:
    """A cluster with so many GPUs and CPUs."""

    def __init__(self, gpus: int, cpus: int) -> None:
        self._resources = {"GPU": float(gpus), "CPU": float(cpus)}

    def nodes(self) -> list[dict[str, object]]:
        return [{"Alive": True, "Resources": self._resources}, {"Alive": False, "Resources": self._resources}]


def work(tmp_path: Path, ranks: int | None) -> RankWork:
    return RankWork("m", print, None, Checkpoint(tmp_path), tmp_path, tmp_path, ranks, print, lambda: 0)


def test_a_training_has_a_rank_for_each_gpu_or_as_many_as_the_file_says(tmp_path: Path) -> None:
    cluster = Offers(gpus=8, cpus=4)

    assert _count(cluster, work(tmp_path, None), has_gpus=True, is_first=True) == 8
    assert _count(cluster, work(tmp_path, 2), has_gpus=True, is_first=True) == 2
    assert _count(cluster, work(tmp_path, 4), has_gpus=False, is_first=True) == 4
    with pytest.raises(UserError, match="ranks is 5, and the cluster offers 4 CPUs"):
        _count(cluster, work(tmp_path, 5), has_gpus=False, is_first=True)


def test_after_a_loss_a_training_goes_on_with_the_ranks_that_are_left(tmp_path: Path) -> None:
    assert _count(Offers(gpus=6, cpus=4), work(tmp_path, 8), has_gpus=True, is_first=False) == 6


def test_a_training_that_loses_ranks_without_a_new_checkpoint_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = [0]
    starts: list[int] = []

    class Lost:
        def __init__(self, ray: object, count: int, *, has_gpus: bool) -> None:
            starts.append(count)

        def __enter__(self) -> "Lost":
            return self

        def __exit__(self, *problem: object) -> None:
            pass

        def train(self, _: RankWork) -> None:
            if len(starts) in (2, 4):
                saved[0] += 10
            raise LostRank("rank 1 on 10.0.0.2 was lost")

    monkeypatch.setattr(rank_group, "_Group", Lost)
    job = replace(work(tmp_path, 2), steps_saved=lambda: saved[0])

    with pytest.raises(UserError, match="4 times in a row a rank was lost"):
        run_on_ranks(Offers(gpus=0, cpus=4), job, has_gpus=False)

    assert len(starts) == 7, "the second and the fourth start brought a checkpoint, and three starts after that none"
    assert "training goes on from the start" in (said := capsys.readouterr().err)
    assert "training goes on after step 20" in said
