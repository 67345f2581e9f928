"""Reading an untrusted corpus: unusable parts are counted, and unusable files are reported in one error."""

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillmix.errors import UserError
from skillmix.frequencies import documents
from skillmix.frequencies.counting import FrequencyWanted, draw
from skillmix.frequencies.documents import (
    NO_TEXT,
    NOT_JSON,
    NOT_UTF8,
    OUTER_LINK,
    TOO_LONG,
    UNKNOWN_KIND,
    ReadCounts,
    check_files,
    corpus_files,
    documents_of,
    require_readable,
)


def read(*sources: Path, field: str = "text") -> tuple[list[tuple[str, list[str]]], ReadCounts]:
    counts = ReadCounts()
    found = documents_of(corpus_files(sources), text_field=field, counts=counts)
    read = [(Path(d.place).name, list(d.paragraphs)) for d in found]
    require_readable(counts, field)
    return read, counts


def test_blank_lines_separate_paragraphs_and_wrapped_lines_are_joined(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("\n\nOne line\nand its end.\r\n\n  Another.  \n\n", encoding="utf-8")

    found, _ = read(file)

    assert found == [("a.txt", ["One line and its end.", "Another."])]


def test_a_text_without_blank_lines_has_a_paragraph_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("First.\nSecond.\n", encoding="utf-8")

    assert read(tmp_path / "a.txt")[0] == [("a.txt", ["First.", "Second."])]


def test_broken_lines_are_counted_by_reason_and_the_others_are_used(tmp_path: Path) -> None:
    lines = [
        b'{"text": "Good."}',
        b"{not json",
        b'{"other": 1}',
        b'{"text": 5}',
        b'{"text": "   "}',
        b"[1, 2]",
        b"",
        b'{"text": "caf\xe9"}',
        b"[" * 200_000,
        b'{"text": "Also good."}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))

    found, counts = read(tmp_path)

    assert found == [("a.jsonl:1", ["Good."]), ("a.jsonl:8", ["caf�"]), ("a.jsonl:10", ["Also good."])]
    assert counts.skipped == {NOT_JSON: 2, NO_TEXT: 4, NOT_UTF8: 1}
    assert counts.documents == 3


def test_a_line_that_is_too_long_is_skipped_without_being_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_LONGEST_LINE", 40)
    long = json.dumps({"text": "x" * 200})
    (tmp_path / "a.jsonl").write_text(f'{{"text": "One."}}\n{long}\n{{"text": "Two."}}\n', encoding="utf-8")

    found, counts = read(tmp_path)

    assert [text for _, text in found] == [["One."], ["Two."]]
    assert counts.skipped == {TOO_LONG: 1}


def test_a_nested_field_is_found_by_its_dotted_name_in_json_and_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"meta": {"body": "One."}}, {"meta": {"body": None}}, {"meta": {"body": "Two."}}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    found, counts = read(tmp_path, field="meta.body")

    assert [text for _, text in found] == [["One."], ["Two."]] * 2
    assert counts.skipped == {NO_TEXT: 2}


def test_packed_files_and_other_encodings_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("Größe.".encode()))
    (tmp_path / "b.txt").write_bytes("Größe.".encode("utf-16"))
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbf" + "Größe.".encode())
    (tmp_path / "d.txt").write_bytes("Größe.".encode("latin-1"))

    found, counts = read(tmp_path)

    assert [text for _, text in found] == [["Größe."], ["Größe."], ["Größe."], ["Gr��e."]]
    assert counts.skipped == {NOT_UTF8: 1}


def test_empty_files_have_no_document_and_are_no_fault(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.jsonl.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith("gz") else b"")

    found, counts = read(tmp_path)

    assert [paragraphs for _, paragraphs in found] == [[]]  # the text file
    assert counts.file_faults == []


def test_one_error_lists_every_file_that_cannot_be_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "Good."}\n' * 5000)[:-20])
    (tmp_path / "no.parquet").write_bytes(b"PAR1 no PAR1")
    parquet.write_table(pyarrow.table({"body": ["x"]}), tmp_path / "other.parquet")
    (tmp_path / "wrong.jsonl").write_text('{"body": "x"}\n{"body": "y"}\n', encoding="utf-8")
    (tmp_path / "fine.txt").write_text("Fine.", encoding="utf-8")

    with pytest.raises(UserError) as error:
        read(tmp_path)

    for name in ("cut.jsonl.gz", "no.parquet", "other.parquet", "wrong.jsonl"):
        assert name in error.value.message
    assert "4 faults" in error.value.message
    assert "fine.txt" not in error.value.message
    with pytest.raises(UserError, match="no column 'text'; its columns are body"):
        check_files(corpus_files([tmp_path]), text_field="text")


def test_one_error_lists_every_source_that_names_nothing_readable(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.bin").write_bytes(b"x")

    with pytest.raises(UserError) as error:
        corpus_files([tmp_path / "gone.txt", tmp_path / "empty", tmp_path / "a.bin"])

    assert all(name in error.value.message for name in ("gone.txt", "empty", "a.bin"))
    assert ".parquet" in str(error.value.hint)


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Once.", encoding="utf-8")
    (tmp_path / ".hidden.txt").write_text("Never.", encoding="utf-8")
    (tmp_path / "notes.bin").write_bytes(b"x")

    assert corpus_files([tmp_path, tmp_path / "a.txt"]) == [tmp_path / "a.txt"]


def test_a_line_without_end_is_cut_and_not_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST_PARAGRAPH", 50)
    (tmp_path / "a.txt").write_text("word " * 100, encoding="utf-8")

    ((_, paragraphs),), _ = read(tmp_path / "a.txt")

    assert max(map(len, paragraphs)) <= 50
    assert " ".join(paragraphs).split() == ["word"] * 100


@pytest.fixture
def broken_archives(tmp_path: Path) -> Path:
    """A folder with a truncated archive, one with a wrong checksum, and one that is damaged near its end."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    packed = gzip.compress(b"".join(b"Line %d of a text.\n" % n for n in range(2000)))  # larger than one read buffer
    (folder / "cut.txt.gz").write_bytes(packed[:-12])
    (folder / "sum.txt.gz").write_bytes(packed[:-8] + b"\0\0\0\0" + packed[-4:])
    late = gzip.compress(b"".join(b"Line %d of a text that is much longer.\n\n" % n for n in range(20_000)))
    (folder / "late.txt.gz").write_bytes(late[:-8] + b"\0\0\0\0" + late[-4:])
    (folder / "fine.txt").write_text("Fine words in a fine text, which has enough of them for a passage.")
    return folder


def test_one_error_lists_every_packed_text_that_breaks_while_its_paragraphs_are_read(broken_archives: Path) -> None:
    with pytest.raises(UserError) as error:
        read(broken_archives)

    assert all(f"{name}.txt.gz cannot be unpacked" in error.value.message for name in ("cut", "sum", "late"))
    assert "3 faults" in error.value.message


def test_the_first_look_lists_every_packed_text_that_breaks_at_once(broken_archives: Path) -> None:
    with pytest.raises(UserError) as error:
        check_files(corpus_files([broken_archives]), text_field="text")

    assert all(f"{name}.txt.gz cannot be unpacked" in error.value.message for name in ("cut", "sum"))


@pytest.mark.parametrize("readers", [1, 2])
def test_archives_that_break_late_are_one_error_with_any_number_of_readers(broken_archives: Path, readers: int) -> None:
    for name in ("cut", "sum"):
        (broken_archives / f"{name}.txt.gz").unlink()
    (broken_archives / "other.txt.gz").write_bytes((broken_archives / "late.txt.gz").read_bytes())

    with pytest.raises(UserError) as error:
        draw(FrequencyWanted((broken_archives,), {}, n=5, readers=readers))

    assert all(f"{name}.txt.gz cannot be unpacked" in error.value.message for name in ("late", "other"))


def test_links_out_of_a_folder_are_counted_and_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (elsewhere / "secret.txt").write_text("Secret.", encoding="utf-8")
    (folder / "a.txt").write_text("Open.", encoding="utf-8")
    (folder / "notes.bin").write_bytes(b"x")
    (folder / "file.txt").symlink_to(elsewhere / "secret.txt")
    (folder / "folder").symlink_to(elsewhere)
    (folder / "gone.txt").symlink_to(elsewhere / "gone.txt")
    (folder / "circle.txt").symlink_to(folder / "circle.txt")
    (folder / "again.txt").symlink_to(folder / "a.txt")
    skipped: Counter[str] = Counter()

    files = corpus_files([folder], skipped=skipped)

    assert [file.resolve() for file in files] == [folder / "a.txt"]
    assert skipped == {OUTER_LINK: 4, UNKNOWN_KIND: 1}


def test_a_sample_reports_what_was_left_out_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("Secret words. " * 30, encoding="utf-8")
    (folder / "a.txt").write_text("Open words. " * 30, encoding="utf-8")
    (folder / "s.txt").symlink_to(tmp_path / "secret.txt")

    drawn = draw(FrequencyWanted((folder,), {}, n=5))

    assert drawn.counts.skipped == {OUTER_LINK: 1}
    assert not any("Secret" in passage.text for passage in drawn.passages)


def test_a_link_that_is_named_itself_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("Open.", encoding="utf-8")
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    (tmp_path / "b.txt").symlink_to(tmp_path / "real" / "a.txt")

    assert corpus_files([tmp_path / "folder"]) == [tmp_path / "folder" / "a.txt"]
    assert corpus_files([tmp_path / "b.txt"]) == [tmp_path / "b.txt"]


def test_a_folder_that_cannot_be_read_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the error directly, because file permissions do not restrict the user root."""
    (tmp_path / "a.txt").write_text("Open.", encoding="utf-8")
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def refuse(path: str | Path) -> "Iterator[os.DirEntry[str]]":
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(UserError, match=r"closed cannot be read: Permission denied"):
            corpus_files([tmp_path])
