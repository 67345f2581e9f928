"""A temporary file without a name: the system frees it when the process ends, however it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO

from skillmix.errors import UserError


def beside(path: Path) -> Path:
    """The folder that a path is in, or the nearest one above it that exists: the disk that the path is on."""
    return next(folder for folder in path.resolve().parents if folder.is_dir())


class ScratchFile:
    """Bytes on disk, in a folder if it can be written, or else where the system keeps temporary files."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self.size = 0

    def append(self, content: bytes | memoryview) -> int:
        """Add bytes at the end; return where they begin."""
        start = self.size
        with self._saying_where():
            if self._file is None:
                self._file = self._opened()
            self._file.seek(start)
            self._file.write(content)
        self.size = start + len(content)
        return start

    def read(self, start: int, size: int) -> bytes:
        """Bytes from a place on."""
        if self._file is None or not size:
            return b""
        with self._saying_where():
            self._file.seek(start)
            return self._file.read(size)

    def close(self) -> None:
        """Give the disk space back."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.size = 0

    def __del__(self) -> None:
        self.close()

    def _opened(self) -> IO[bytes]:
        if self._folder is not None:
            try:
                return TemporaryFile(dir=self._folder)
            except OSError:  # the folder is not there, or cannot be written
                self._folder = None
        return TemporaryFile()

    @contextmanager
    def _saying_where(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"A temporary file in {self._folder or gettempdir()} cannot be written: {error.strerror or error}.",
                hint="Make room there, and run the command again; nothing that was made before is lost.",
            ) from None
