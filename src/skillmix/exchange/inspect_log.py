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

_DAMAGED: Final = "The file is damaged or not a log of Inspect AI. Nothing was imported."
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")
_ZSTD: Final = 93
_HEADERS: Final = ("header.json", "_journal/start.json")
"""The header files of a finished log and of the log of an interrupted evaluation."""


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Limits on the bytes read from a log and on the number of files in an archive."""

    json_file: int = 256 << 20
    entry: int = 64 << 20
    archive: int = 8 << 30
    entries: int = 2_000_000


@dataclass(frozen=True, slots=True)
class InspectLog:
    """One log, with its header and an iterator over its samples."""

    path: Path
    header: dict[str, Any]
    samples: Iterator[object] = field(repr=False)

    @property
    def spec(self) -> dict[str, Any]:
        """The section `eval`, which contains the task, the model and the settings."""
        return mapping(self.header.get("eval"))

    @property
    def config(self) -> dict[str, Any]:
        """The sampling settings from the task and the command line."""
        return mapping(mapping(self.header.get("plan")).get("config"))


def mapping(value: object) -> dict[str, Any]:
    """Return a JSON object, or an empty object for any other value."""
    return value if isinstance(value, dict) else {}


@contextmanager
def opened_log(path: Path, limits: LogLimits = LogLimits()) -> Iterator[InspectLog]:  # LogLimits is frozen
    """Open a log of either format; the samples can be read until the block ends."""
    if not path.is_file():
        raise UserError(f"There is no log {path}.", hint="Inspect writes its logs to the folder logs/.")
    no_samples = UserError(f"{path} contains no samples.", hint="Run the evaluation without --no-log-samples.")
    with path.open("rb") as stream:
        if stream.read(2) == b"PK":
            archive = _Archive(path, stream, limits)
            # If two files have the same name, the last one counts.
            samples = sorted(n for n in archive.files if n.startswith("samples/") and n.endswith(".json"))
            header = next((name for name in _HEADERS if name in archive.files), None)
            if not samples:
                raise no_samples
            if header is None:
                raise UserError(f"{path} has no header.", hint=_DAMAGED)
            yield InspectLog(path, archive.document(header), map(archive.document, samples))
            return
    if path.stat().st_size > limits.json_file:
        raise UserError(
            f"{path} has {path.stat().st_size} bytes, but a .json log may have at most {limits.json_file}.",
            hint="Convert it: inspect log convert FILE --to eval --output-dir DIR",
        )
    document = _object(path.read_bytes(), str(path))
    samples = document.pop("samples", None)
    if not isinstance(samples, list):
        raise no_samples
    yield InspectLog(path, document, iter(samples))


def _object(raw: bytes, source: str) -> dict[str, Any]:
    try:
        document = json.loads(raw)  # Inspect writes NaN, which is not JSON, for a score without a value
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else f"not valid JSON ({error})"
        raise UserError(f"{source} is {reason}.", hint=_DAMAGED) from None
    if not isinstance(document, dict):
        raise UserError(f"{source} is not a JSON object.", hint=_DAMAGED)
    return document


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
            raise UserError(f"{path} is a damaged archive ({error}).", hint=_DAMAGED) from None
        self.files = self._zip.NameToInfo
        if len(self.files) > limits.entries:
            raise UserError(f"{path} contains more than {limits.entries} files.", hint=_DAMAGED)

    def document(self, name: str) -> dict[str, Any]:
        """Return one file as a JSON object."""
        source = f"{name!r} in {self._path}"
        try:
            raw = self._content(self.files[name])
        except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OSError, ValueError) as error:
            raise UserError(f"{source} cannot be read ({error}).", hint=_DAMAGED) from None
        self._read += len(raw)
        if len(raw) > self._limits.entry:
            raise UserError(f"{source} has more than {self._limits.entry} bytes.", hint=_DAMAGED)
        if self._read > self._limits.archive:
            raise UserError(f"{self._path} contains more than {self._limits.archive} bytes.", hint=_DAMAGED)
        return _object(raw, source)

    def _content(self, info: zipfile.ZipInfo) -> bytes:
        """Return the data of one file, up to one byte more than allowed."""
        most = self._limits.entry + 1
        if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with self._zip.open(info) as file:
                return file.read(most)
        if info.compress_type != _ZSTD or info.flag_bits & 1:
            raise ValueError(f"its compression {info.compress_type} is not one of Inspect's, or it is encrypted")
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


def _zstd_content(raw: bytes, most: int) -> bytes:
    """Decompress at most `most` bytes with zstandard, which Inspect requires, or with pyarrow."""
    try:
        import zstandard
    except ImportError:
        try:
            import pyarrow
        except ImportError:
            raise UserError(
                "An .eval log is compressed with Zstandard, and no installed package can read it.",
                hint="pip install 'skillmix[inspect]', or convert the log: inspect log convert FILE --to json "
                "--output-dir DIR",
            ) from None
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(raw), "zstd") as reader:
            return bytes(reader.read(most))
    try:
        with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as reader:
            return bytes(reader.read(most))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
