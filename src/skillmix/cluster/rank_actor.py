"""One rank of a training, of which Ray makes an actor."""

import io
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from skillmix.cluster import rank_folder
from skillmix.cluster.folder_files import CheckpointFiles, FileFacts, FolderFiles, NodeStore
from skillmix.cluster.lease_actor import VERSIONS
from skillmix.cluster.rank_folder import GivenFolder
from skillmix.runs.leases.rank_work import RankEvent


class RankPlace(NamedTuple):
    """Where a rank is."""

    node: str
    address: str
    gpus: tuple[str, ...]
    """The GPUs that Ray gave to it, as CUDA_VISIBLE_DEVICES names them."""
    port: int
    """A free port of its machine."""
    versions: tuple[str, str] = VERSIONS


class RankActor:
    """Trains in one thread, and answers the driver in another."""

    def __init__(self) -> None:
        self._store = NodeStore()
        self._events: list[RankEvent] = []
        self._lock = threading.Lock()

    def place(self) -> RankPlace:
        """Where this process is."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        node = ray.get_runtime_context().get_node_id()
        return RankPlace(node, ray.util.get_node_ip_address(), tuple(filter(None, visible.split(","))), port)

    def own_folder(self, key: str) -> Path:
        """The folder of a training on this machine."""
        return rank_folder.own_folder(key)

    def set_up(self, folder: Path, given: Sequence[GivenFolder]) -> None:
        """Make a new folder with the files that were sent."""
        rank_folder.set_up(folder, given)

    def last_checkpoint(self, folder: Path) -> str | None:
        """The name of the last complete checkpoint."""
        return rank_folder.last_checkpoint(folder)

    def hold(self, folder: Path, checkpoint: str) -> dict[str, int]:
        """Keep a checkpoint while it is read; its files."""
        return rank_folder.hold(folder, checkpoint)

    def release(self, folder: Path) -> None:
        """Keep no checkpoint any more."""
        rank_folder.release(folder)

    def sizes_in(self, folder: Path, name: str) -> dict[str, int]:
        """The files of a folder with their sizes."""
        return rank_folder.sizes_in(folder, name)

    def read_part(self, folder: Path, name: str, offset: int, size: int) -> bytes:
        """A part of a file."""
        return rank_folder.read_part(folder, name, offset, size)

    def remove(self, folder: Path) -> None:
        """Remove the folder of a training that is over."""
        shutil.rmtree(folder, ignore_errors=True)

    def missing(self, paths: tuple[str, ...]) -> list[str]:
        """Those of the paths that this machine does not see."""
        return [path for path in paths if not Path(path).exists()]

    def wanted_files(self, folder: FolderFiles) -> tuple[FileFacts, ...] | None:
        """The files of a folder that this machine lacks; None if another process is taking them."""
        return self._store.wanted(folder)

    def store_part(self, folder: FolderFiles, name: str, offset: int, data: bytes) -> None:
        """Take a part of a file."""
        self._store.store(folder, name, offset, data)

    def keep_folder(self, folder: FolderFiles) -> None:
        """Check and keep a folder whose parts have all come."""
        self._store.keep(folder)

    def drop_folder(self, folder: FolderFiles) -> None:
        """Give up a folder that did not come whole."""
        self._store.drop(folder)

    def train(
        self,
        environment: Mapping[str, str],
        function: Callable[..., None],
        base: CheckpointFiles,
        folder: Path,
        payload: Any,
    ) -> None:
        """Train to the end."""
        os.environ.update(environment)
        directory = environment.get("PWD", "")
        if Path(directory).is_dir():  # for paths of the experiment that are relative to the driver's folder
            os.chdir(directory)
        sys.stderr = _SaidLines(sys.stderr, self._report)
        function(self._report, base.here(), folder, payload)

    def events(self) -> list[RankEvent]:
        """What was reported since the last time."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def _report(self, event: RankEvent) -> None:
        with self._lock:
            self._events.append(event)


class _SaidLines(io.TextIOBase):
    """Standard error of a rank: whole lines go to the driver, and everything into Ray's log."""

    def __init__(self, stream: TextIO, report: Callable[[RankEvent], None]) -> None:
        self._stream, self._report = stream, report
        self._begun = ""

    def write(self, text: str) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            self._report(("say", (line,), {}))
        self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
