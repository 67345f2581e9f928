"""Make two small corpora from Debian packages: `python bench/public_corpora.py PACKAGES FOLDER`.

PACKAGES is a folder with the files downloaded by `apt-get download r-cran-janeaustenr debian-handbook dict-foldoc`
(1.0.0-1, 11.20220922 and 20230119-1). The script writes `novel/novels.jsonl` (novels of Jane Austen, one document per
chapter), `factual/handbook.jsonl` (one document per section) and `factual/foldoc.jsonl` (one document per entry) to
FOLDER. Blank lines separate paragraphs. No code of the packages is run, and none of their text is in this repository.
"""

import gzip
import json
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory

_BOOKS = ("emma", "mansfieldpark", "northangerabbey", "persuasion", "prideprejudice", "sensesensibility")
_CHAPTER = re.compile(r"^(?:CHAPTER|Chapter|VOLUME|Volume)\b")
_SUBJECTS = re.compile(r"^<[^<>]*>\s*")
_DATE = re.compile(r"\s*\(\d{4}-\d{2}-\d{2}\)\s*$")
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def main(packages: Path, folder: Path) -> None:
    """Write the corpora."""
    with TemporaryDirectory() as place:
        for package in sorted(packages.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", str(package), place], check=True)
        root = Path(place)
        _write(folder / "novel/novels.jsonl", _chapters(root))
        _write(folder / "factual/handbook.jsonl", _sections(root))
        _write(folder / "factual/foldoc.jsonl", _entries(root))


def _write(file: Path, documents: Iterable[tuple[str, str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"source": source, "text": text}, ensure_ascii=False) for source, text in documents if text]
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{file}: {len(rows)} documents")


def _chapters(root: Path) -> Iterator[tuple[str, str]]:
    data = root / "usr/lib/R/site-library/janeaustenr/data"
    index = gzip.decompress((data / "Rdata.rdx").read_bytes())
    stored = (data / "Rdata.rdb").read_bytes()
    # For each object, the index has a vector of two integers: its start and its length.
    pairs = [struct.unpack(">ii", match[1]) for match in re.finditer(rb"\0\0\0\x0d\0\0\0\x02(.{8})", index, re.DOTALL)]
    for name, (start, length) in zip(_BOOKS, pairs, strict=True):
        chapters: list[list[str]] = [[]]
        for line in _strings(zlib.decompress(stored[start + 4 : start + length])):
            if _CHAPTER.match(line):
                chapters.append([])
            else:
                chapters[-1].append(line)
        for number, lines in enumerate(chapters[1:], start=1):
            yield f"{name} {number}", "\n".join(lines).strip()


def _strings(content: bytes) -> list[str]:
    """Return the strings of a serialized R vector of strings, which follows the header of the stream."""
    position = content.index(b"\0\0\0\x10")
    (count,) = struct.unpack(">i", content[position + 4 : position + 8])
    position += 8
    found = []
    for _ in range(count):
        (size,) = struct.unpack(">i", content[position + 4 : position + 8])
        position += 8
        found.append(content[position : position + max(size, 0)].decode("utf-8", "replace"))
        position += max(size, 0)
    return found


class _Paragraphs(HTMLParser):
    """Collects the paragraphs of a page of the handbook, without listings."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[bool] = []
        self._listings = 0
        self._words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "div":
            self._end()
            self._open.append(dict(attrs).get("class") == "para")
        self._listings += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._open:
            self._end()
            self._open.pop()
        self._listings -= tag == "pre"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] and not self._listings:
            self._words.append(data)

    def _end(self) -> None:
        text = " ".join("".join(self._words).split())
        if text:
            self.found.append(text)
        self._words = []


def _sections(root: Path) -> Iterator[tuple[str, str]]:
    for page in sorted((root / "usr/share/doc/debian-handbook/html/en-US").glob("*.html")):
        parser = _Paragraphs()
        parser.feed(page.read_text("utf-8"))
        yield page.stem, "\n\n".join(parser.found)


def _entries(root: Path) -> Iterator[tuple[str, str]]:
    folder = root / "usr/share/dictd"
    content = gzip.decompress((folder / "foldoc.dict.dz").read_bytes())
    seen = set()
    for line in (folder / "foldoc.index").read_text("utf-8").splitlines():
        name, start, length = line.split("\t")
        place = _number(start)
        if place in seen or name.startswith("00"):  # several names may refer to one entry
            continue
        seen.add(place)
        yield name, _plain_entry(content[place : place + _number(length)].decode("utf-8", "replace"))


def _number(digits: str) -> int:
    """Parse a number in the base-64 notation of dictd."""
    value = 0
    for digit in digits:
        value = value * 64 + _DIGITS.index(digit)
    return value


def _plain_entry(entry: str) -> str:
    """Return the prose of an entry, without its names, subjects, links, sources and date."""
    _, _, body = entry.partition("\n\n")
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", body.replace("{", "").replace("}", ""))]
    plain = [_DATE.sub("", _SUBJECTS.sub("", part)) for part in paragraphs]
    return "\n\n".join(part for part in plain if part and part[0] != "[")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
