"""Folders that the driver sends to machines: checked, kept, taken by one process at a time, and refused if wrong."""

import asyncio
import shutil
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from skillmix.cluster import folder_sender
from skillmix.cluster.folder_files import (
    CheckpointFiles,
    FolderFiles,
    NodeStore,
    files_of,
    folder_files,
    kept_folder,
    place_of,
    settings_here,
)
from skillmix.cluster.folder_sender import FolderSender
from skillmix.errors import UserError
from skillmix.experiment.experiment import GraderSettings, StudentSettings
from skillmix.experiment.plan import Settings
from skillmix.models.checkpoints import Checkpoint

WEIGHTS = bytes(range(256)) * 40


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, and a cache of its own."""
    monkeypatch.setenv("SKILLMIX_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "modeling.py").write_text("raise SystemExit", encoding="utf-8")
    return folder


def elsewhere(folder: FolderFiles) -> FolderFiles:
    """The folder as a machine knows it that does not see the path."""
    return FolderFiles("/nowhere/model", folder.files)


def test_only_files_that_a_model_is_loaded_from_are_sent(model: Path) -> None:
    [folder] = files_of(Checkpoint(model)).folders

    assert [file.name for file in folder.files] == ["config.json", "model.safetensors"]
    assert folder.bytes == len(WEIGHTS) + 2


def test_a_path_with_the_same_files_is_used_and_one_with_others_is_refused(model: Path) -> None:
    [folder] = files_of(Checkpoint(model)).folders
    assert place_of(folder) == model
    assert NodeStore().wanted(folder) == ()

    (model / "model.safetensors").write_bytes(WEIGHTS[::-1])

    with pytest.raises(UserError, match=r"differs from the driver's: model\.safetensors"):
        NodeStore().wanted(folder)


class Sent:
    """What Ray returns for a call: it can be waited for in two ways."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._future: Future[Any] = Future()
        try:
            self._future.set_result(function(*arguments))
        except UserError as error:
            self._future.set_exception(error)

    def future(self) -> "Future[Any]":
        return self._future

    def __await__(self) -> Any:
        return asyncio.wrap_future(self._future).__await__()


class Remote:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = lambda *arguments: Sent(function, arguments)


class Machine:
    """An actor in this process, with a store of files."""

    def __init__(self, store: NodeStore, folder: FolderFiles) -> None:
        self.parts: list[tuple[str, int]] = []
        self.wanted_files = Remote(lambda _: store.wanted(folder))
        self.store_part = Remote(lambda _, name, offset, data: self._store(store, folder, name, offset, data))
        self.keep_folder = Remote(lambda _: store.keep(folder))
        self.drop_folder = Remote(lambda _: store.drop(folder))

    def _store(self, store: NodeStore, folder: FolderFiles, name: str, offset: int, data: bytes) -> None:
        self.parts.append((name, offset))
        store.store(folder, name, offset, data)


class Ray:
    def put(self, data: bytes) -> bytes:
        return data


def test_a_missing_folder_is_sent_in_parts_and_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_sender, "_PART", 1000)
    [folder] = files_of(Checkpoint(model)).folders
    there = elsewhere(folder)
    machine = Machine(NodeStore(), there)

    asyncio.run(FolderSender(Ray()).provide(machine, "node", [folder], name="worker 1"))

    assert len(machine.parts) == 1 + -(-len(WEIGHTS) // 1000)
    kept = place_of(there)
    assert kept == kept_folder(folder)
    assert (kept / "model.safetensors").read_bytes() == WEIGHTS
    assert not (kept / "modeling.py").exists()
    assert CheckpointFiles((there,)).here() == Checkpoint(kept)
    machine.parts.clear()
    asyncio.run(FolderSender(Ray()).provide(machine, "node", [folder], name="worker 1"))
    assert machine.parts == [], "it is sent once"


def test_one_process_takes_a_folder_and_the_others_wait(model: Path) -> None:
    [folder] = files_of(Checkpoint(model)).folders
    there = elsewhere(folder)
    first, second = NodeStore(), NodeStore()

    assert first.wanted(there) == folder.files
    assert second.wanted(there) is None
    for file in folder.files:
        first.store(there, file.name, 0, (model / file.name).read_bytes())
    first.keep(there)

    assert second.wanted(there) == ()


def test_a_folder_whose_sending_was_given_up_can_be_taken_by_another_process(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [folder] = files_of(Checkpoint(model)).folders
    there = elsewhere(folder)
    first, second = Machine(NodeStore(), there), Machine(NodeStore(), there)
    monkeypatch.setattr(folder_sender, "_PART", 1000)

    async def main() -> None:
        sending = asyncio.create_task(FolderSender(Ray()).provide(first, "node", [folder], name="worker 1"))
        while len(first.parts) < 3:
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        await FolderSender(Ray()).provide(second, "node", [folder], name="worker 2")

    asyncio.run(asyncio.wait_for(main(), 20))

    assert place_of(there) == kept_folder(folder)
    assert len(second.parts) > len(first.parts)


def test_files_that_come_with_other_contents_are_not_kept(model: Path) -> None:
    [folder] = files_of(Checkpoint(model)).folders
    there = elsewhere(folder)
    store = NodeStore()
    store.wanted(there)
    store.store(there, "config.json", 0, b"{}")
    store.store(there, "model.safetensors", 0, WEIGHTS[:-1])

    with pytest.raises(UserError, match=r"other contents: model\.safetensors"):
        store.keep(there)

    assert place_of(there) is None
    assert store.wanted(there) == folder.files, "they can be sent again"


def test_a_kept_folder_that_is_damaged_is_sent_again(model: Path) -> None:
    [folder] = files_of(Checkpoint(model)).folders
    there = elsewhere(folder)
    shutil.copytree(model, kept_folder(folder))
    assert place_of(there) is not None

    (kept_folder(folder) / "model.safetensors").write_bytes(WEIGHTS[1:])

    assert NodeStore().wanted(there) == folder.files


def test_a_cache_without_room_is_refused_before_anything_is_sent(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [folder] = files_of(Checkpoint(model)).folders
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    store = NodeStore()

    with pytest.raises(UserError, match="GB free"):
        store.wanted(elsewhere(folder))

    monkeypatch.undo()
    monkeypatch.setenv("SKILLMIX_CACHE", str(model.parent / "cache"))
    assert store.wanted(elsewhere(folder)) == folder.files, "the lock was freed"


def test_a_name_cannot_lead_out_of_the_folder(model: Path) -> None:
    [folder] = files_of(Checkpoint(model)).folders
    store = NodeStore()
    store.wanted(elsewhere(folder))

    with pytest.raises(UserError):
        store.store(elsewhere(folder), "../../escaped.json", 0, b"{}")

    assert not list(model.parent.rglob("escaped.json"))


def test_settings_name_the_folder_of_the_machine(model: Path) -> None:
    files = files_of(Checkpoint(model))
    kept = kept_folder(files.folders[0])
    shutil.copytree(model, kept)
    there = CheckpointFiles(tuple(map(elsewhere, files.folders)))
    models: dict[str, Settings] = {
        "student:s": StudentSettings(model="local:model"),
        "grader:g": GraderSettings(model="rules:local:model"),
        "grader:h": GraderSettings(model="openai:m"),
    }

    here = settings_here(models, {"student:s": there, "grader:g": there})

    assert [settings.model for settings in here.values()] == [f"local:{kept}", f"rules:local:{kept}", "openai:m"]


def test_files_that_may_not_be_seen_are_always_sent(model: Path) -> None:
    folder = folder_files(model, ["config.json"], is_seen=False)

    assert NodeStore().wanted(folder) == folder.files
