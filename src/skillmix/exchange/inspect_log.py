"""Read logs of Inspect AI without Inspect: `.json` files, and `.eval` files, which are zip archives of JSON files.

Logs are untrusted. Nothing is unpacked to the disk, and names inside an archive are never used as paths. Every size is
limited while the data are read, because a small archive can contain terabytes of zeros.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from skillmix.errors import UserError

_MEBI: Final = 2**20
_NEEDS_ZSTD: Final = (
    "pip install 'skillmix[inspect]', or convert the log: inspect log convert FILE --to json --output-dir DIR"
)


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Limits on how much of one log is read."""

    json_file: int = 256 * _MEBI
    """The largest size of a `.json` log in bytes, because it is read as a whole."""
    entry: int = 64 * _MEBI
    """The largest size in bytes of one file inside an `.eval` log, which is a sample or the header."""
    archive: int = 8192 * _MEBI
    """The largest total size in bytes of the files read from an `.eval` log."""
    entries: int = 2_000_000
    """The largest number of files inside an `.eval` log."""


LIMITS: Final = LogLimits()


@dataclass(frozen=True, slots=True)
class InspectLog:
    """One log, with its header and an iterator over its samples."""

    path: Path
    header: dict[str, Any]
    samples: Iterator[object] = field(repr=False)

    @property
    def spec(self) -> dict[str, Any]:
        """Return the section `eval`, which contains the task, the model and the settings."""
        return mapping(self.header.get("eval"))

    @property
    def config(self) -> dict[str, Any]:
        """Return the sampling settings from the task and the command line."""
        return mapping(mapping(self.header.get("plan")).get("config"))


def mapping(value: object) -> dict[str, Any]:
    """Return the value if it is a JSON object, otherwise an empty object."""
    return value if isinstance(value, dict) else {}


@contextmanager
def opened_log(path: Path, limits: LogLimits = LIMITS) -> Iterator[InspectLog]:
    """Open a log of either format; the samples can be read until the block ends."""
    if not path.is_file():
        raise UserError(f"There is no log {path}.", hint="Inspect writes its logs into the folder logs/.")
    no_samples = UserError(f"{path} holds no samples.", hint="Run the evaluation without --no-log-samples.")
    with path.open("rb") as stream:
        if stream.read(2) == b"PK":
            archive = _Archive(path, stream, limits)
            # If two files have the same name, the last one counts.
            samples = sorted(n for n in archive.names if n.startswith("samples/") and n.endswith(".json"))
            header = next((name for name in _HEADERS if name in archive.names), None)
            if not samples:
                raise no_samples
            if header is None:
                raise UserError(f"{path} has no header.", hint=_DAMAGED)
            yield InspectLog(path, archive.document(header), map(archive.document, samples))
            return
    size = path.stat().st_size
    if size > limits.json_file:
        raise UserError(
            f"{path} has {size} bytes; a .json log may have {limits.json_file}.",
            hint="Convert it: inspect log convert FILE --to eval --output-dir DIR",
        )
    document = _object(path.read_bytes(), str(path))
    samples = document.pop("samples", None)
    if not isinstance(samples, list):
        raise no_samples
    yield InspectLog(path, document, iter(samples))


def _object(raw: bytes, source: str) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except RecursionError:
        raise UserError(f"{source} is nested too deeply.", hint=_DAMAGED) from None
    except ValueError as error:
        raise UserError(f"{source} is not valid JSON ({error}).", hint=_DAMAGED) from None
    if not isinstance(document, dict):
        raise UserError(f"{source} is not a JSON object.", hint=_DAMAGED)
    return document


_DAMAGED: Final = "It is not a log of Inspect AI, or it is damaged; nothing was imported."
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
_ZSTD: Final = 93
_PLAIN_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_HEADERS: Final = ("header.json", "_journal/start.json")
"""The header files of a finished log and of the log of an interrupted evaluation."""


class _Archive:
    """An `.eval` file."""

    def __init__(self, path: Path, stream: IO[bytes], limits: LogLimits) -> None:
        self._path = path
        self._stream = stream
        self._limits = limits
        self._read = 0
        try:
            self._zip = zipfile.ZipFile(stream)
        except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError) as error:
            raise UserError(f"{path} is not a sound archive ({error}).", hint=_DAMAGED) from None
        self.names = self._zip.NameToInfo
        if len(self.names) > limits.entries:
            raise UserError(f"{path} holds more than {limits.entries} files.", hint=_DAMAGED)

    def document(self, name: str) -> dict[str, Any]:
        """Return one file as a JSON object."""
        source = f"{name!r} in {self._path}"
        try:
            raw = self._content(self.names[name])
        except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError, ValueError) as error:
            raise UserError(f"{source} cannot be read ({error}).", hint=_DAMAGED) from None
        if len(raw) > self._limits.entry:
            raise UserError(f"{source} has more than {self._limits.entry} bytes.", hint=_DAMAGED)
        self._read += len(raw)
        if self._read > self._limits.archive:
            raise UserError(f"{self._path} holds more than {self._limits.archive} bytes.", hint=_DAMAGED)
        return _object(raw, source)

    def _content(self, info: zipfile.ZipInfo) -> bytes:
        """Return the data of one file, up to one byte more than allowed."""
        most = self._limits.entry + 1
        if info.compress_type == _ZSTD:
            if info.flag_bits & 1:
                raise ValueError("it is encrypted")
            # Python's zipfile supports Zstandard only from version 3.14, so find the data after the local header.
            self._stream.seek(info.header_offset)
            mark, name, extra = _LOCAL_HEADER.unpack(self._stream.read(_LOCAL_HEADER.size))
            if mark != b"PK\3\4":
                raise ValueError("its local header is damaged")
            self._stream.seek(name + extra, 1)
            raw = _zstd_content(self._stream.read(min(info.compress_size, self._limits.entry)), most)
            if len(raw) < most and zlib.crc32(raw) != info.CRC:
                raise ValueError("its checksum differs")
            return raw
        if info.compress_type not in _PLAIN_METHODS:
            raise ValueError(f"its compression {info.compress_type} is not one of Inspect's")
        with self._zip.open(info) as file:
            return file.read(most)


def _zstd_content(raw: bytes, most: int) -> bytes:
    """Decompress at most `most` bytes with the package that Inspect itself requires or, without it, with pyarrow."""
    content: bytes
    try:
        import zstandard
    except ImportError:
        try:
            import pyarrow
        except ImportError:
            raise UserError(
                "An .eval log is compressed with Zstandard, and no installed package can read it.", hint=_NEEDS_ZSTD
            ) from None
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(raw), "zstd") as reader:
            content = reader.read(most)
            return content
    try:
        with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as reader:
            content = reader.read(most)
            return content
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
