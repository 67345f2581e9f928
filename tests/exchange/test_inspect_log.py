"""The reader of Inspect's logs against archives and files that are damaged, huge or malicious."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.exchange import import_inspect
from skillmix.exchange.import_inspect import opened_log
from tests.exchange.replay import LOGS


def archive(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def read(path: Path) -> tuple[dict[str, object], list[object]]:
    with opened_log(path) as log:
        return log.header, list(log.samples)


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read(path)
    return caught.value.message


def test_an_eval_log_of_inspect_is_read_sample_by_sample() -> None:
    header, samples = read(LOGS / "rules.eval")

    assert "eval" in header
    assert len(samples) == 8
    assert {sample["epoch"] for sample in samples if isinstance(sample, dict)} == {1, 2}


def test_pyarrow_reads_an_eval_log_where_zstandard_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    expected = read(LOGS / "rules.eval")
    monkeypatch.setitem(sys.modules, "zstandard", None)

    assert read(LOGS / "rules.eval") == expected


def test_without_any_reader_of_zstandard_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(UserError) as caught:
        read(LOGS / "rules.eval")

    assert "skillmix[inspect]" in str(caught.value.hint)


def test_names_inside_an_archive_are_never_paths(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "a.eval",
        {"header.json": b"{}", "samples/../../../evil.json": b'{"id": 1}', "/samples/abs.json": b"{", "x.json": b"{"},
    )

    _, samples = read(path)

    assert samples == [{"id": 1}]
    assert [file.name for file in tmp_path.rglob("*")] == ["a.eval"]


def test_a_log_that_was_cut_short_has_the_header_of_its_start(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.eval", {"_journal/start.json": b'{"eval": {}}', "samples/1.json": b"{}"})

    assert read(path)[0] == {"eval": {}}


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.eval", {"header.json": b"{}", "samples/1.json": b" " * 10**6})

    monkeypatch.setattr(import_inspect, "LONGEST_ENTRY", 1000)
    assert "has more than 1000 bytes" in refusal(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_inspect_never_writes_are_refused(method: int, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.eval", {"header.json": b"{}", "samples/1.json": b"{}"}, method)

    assert "Inspect does not use" in refusal(path)


def test_a_zstandard_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_inspect, "LONGEST_ENTRY", 6_000)  # its header has fewer bytes, its samples have more

    assert "has more than 6000 bytes" in refusal(LOGS / "rules.eval")


def test_many_files_may_not_be_too_much_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"samples/{n}.json": b" " * 900 + b"{}" for n in range(20)}
    path = archive(tmp_path / "a.eval", {"header.json": b"{}", **files})

    monkeypatch.setattr(import_inspect, "LONGEST_ARCHIVE", 10_000)
    assert "contains more than 10000 bytes" in refusal(path)
    monkeypatch.setattr(import_inspect, "MOST_ENTRIES", 5)
    assert "contains more than 5 files" in refusal(path)


def test_a_large_json_log_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"samples": ["x" * 100]}), encoding="utf-8")

    monkeypatch.setattr(import_inspect, "LONGEST_JSON", 50)
    assert "a .json log may have at most 50" in refusal(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not valid JSON"),
        (b"PK\x03\x04 and no archive", "is a damaged archive"),
        (b"[1, 2]", "is not a JSON object"),
        (b"{}", "contains no samples"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"samples": ' + b"9" * 10_000 + b"}", "is not valid JSON"),
        (b"\xff\xfe\x00", "is not valid JSON"),
    ],
)
def test_a_file_that_is_no_log_is_refused_in_words(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)

    assert words in refusal(path)


def test_a_folder_and_a_missing_file_are_no_logs(tmp_path: Path) -> None:
    assert "There is no log" in refusal(tmp_path)
    assert "There is no log" in refusal(tmp_path / "no.eval")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"samples/1.json": b"{}"}, "has no header"),
        ({"header.json": b"{}"}, "contains no samples"),
        ({"header.json": b"{", "samples/1.json": b"{}"}, "'header.json'"),
        ({"header.json": b"{}", "samples/1.json": b"nan"}, "'samples/1.json'"),
    ],
)
def test_an_archive_that_is_no_log_is_refused_in_words(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    assert words in refusal(archive(tmp_path / "a.eval", files))


@pytest.mark.parametrize("place", [40, 2_000, 9_000, 20_000])
def test_a_log_with_damaged_bytes_is_refused_or_read_without_a_crash(place: int, tmp_path: Path) -> None:
    raw = bytearray((LOGS / "rules.eval").read_bytes())
    raw[place : place + 64] = b"\x00" * 64
    path = tmp_path / "a.eval"
    path.write_bytes(bytes(raw))

    try:
        _, samples = read(path)
    except UserError:
        return
    assert len(samples) == 8, "the damage lay in a file that nobody reads"
