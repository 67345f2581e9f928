"""Send folders from the driver's machine to the machines of a cluster, in parts."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from skillmix.cluster.folder_files import FileFacts, FolderFiles
from skillmix.errors import UserError
from skillmix.runs.progress import say

_PART: Final = 8 << 20
"""Bytes that are sent together."""
_AHEAD: Final = 4
"""Parts under way to one machine."""
_SHARED: Final = 16
"""Parts that stay in Ray's store: machines that take the same folder at the same time get them from there."""
_ASK_AGAIN_S: Final = 0.5
_WORTH_A_LINE: Final = 64 << 20
"""Bytes of a folder that a line tells of."""
_WORTH_WAITING_S: Final = 10.0
"""Seconds after which a line says that a machine waits."""


class FolderSender:
    """Sends the folders that machines lack; a machine takes one folder at a time."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._machines: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._parts: OrderedDict[tuple[str, str, int], Any] = OrderedDict()

    async def provide(self, actor: Any, node: str, folders: Iterable[FolderFiles], *, name: str) -> None:
        """Let the machine of an actor have folders; `name` is the actor's in lines for the user."""
        for folder in folders:
            async with self._machines[node]:
                waited = 0.0
                while (wanted := await actor.wanted_files.remote(folder)) is None:
                    if waited == _WORTH_WAITING_S:
                        say(f"{name} waits for another process of its machine that is taking {folder.path}")
                    await asyncio.sleep(_ASK_AGAIN_S)
                    waited += _ASK_AGAIN_S
                if wanted:
                    await self._send(actor, folder, wanted, name)

    async def _send(self, actor: Any, folder: FolderFiles, wanted: Iterable[FileFacts], name: str) -> None:
        if folder.bytes > _WORTH_A_LINE:
            say(f"{folder.path} goes to {name} ({folder.bytes / 1e9:.1f} GB)")
        under_way: set[asyncio.Future[None]] = set()
        is_kept = False
        try:
            for file in wanted:
                for offset in range(0, file.size, _PART):
                    part = await asyncio.to_thread(self._part, folder, file.name, offset)
                    sent = actor.store_part.remote(folder, file.name, offset, part)
                    under_way.add(asyncio.wrap_future(sent.future()))
                    if len(under_way) >= _AHEAD:
                        under_way = await _some_over(under_way)
            while under_way:
                under_way = await _some_over(under_way)
            await actor.keep_folder.remote(folder)
            is_kept = True
        finally:
            if not is_kept:  # another actor of the machine may take the folder then
                actor.drop_folder.remote(folder)
                for sent in under_way:
                    sent.cancel()

    def _part(self, folder: FolderFiles, name: str, offset: int) -> Any:
        """A part in Ray's store."""
        key = folder.path, name, offset
        if (known := self._parts.get(key)) is not None:
            return known
        try:
            with (Path(folder.path) / name).open("rb") as file:
                file.seek(offset)
                data = file.read(_PART)
        except OSError as error:
            raise UserError(f"{folder.path}/{name} cannot be read: {error.strerror}.", hint="Restore it.") from None
        part = self._parts[key] = self._ray.put(data)
        while len(self._parts) > _SHARED:
            self._parts.popitem(last=False)
        return part


async def _some_over(under_way: "set[asyncio.Future[None]]") -> "set[asyncio.Future[None]]":
    """Wait until a part has arrived, and raise the error of one that did not."""
    done, rest = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        one.result()
    return rest
