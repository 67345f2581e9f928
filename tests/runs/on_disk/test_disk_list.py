"""A list on disk is as good as one in memory."""

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillmix.errors import UserError
from skillmix.runs.on_disk import disk_list
from skillmix.runs.on_disk.disk_list import ChosenItems, DiskList, packed
from skillmix.runs.on_disk.scratch_file import ScratchFile, beside

ITEMS = st.lists(st.tuples(st.text(max_size=3), st.integers()), max_size=40)


@given(ITEMS, st.integers(0, 12), st.data())
def test_a_list_on_disk_gives_back_its_items(items: list[Any], in_memory: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_list, "_BLOCK", 4)
        found = DiskList(items, in_memory=in_memory)
        chosen = data.draw(st.lists(st.integers(0, len(items) - 1), max_size=30) if items else st.just([]))

        assert list(found) == items
        assert len(found) == len(items)
        assert [found[index] for index in range(len(items))] == items
        assert found[2:9:3] == items[2:9:3]
        assert list(ChosenItems(found, chosen)) == [items[index] for index in chosen]


def test_a_choice_of_a_choice_reads_the_first_list() -> None:
    found = ChosenItems(ChosenItems(DiskList("abcdef", in_memory=0), [5, 3, 1]), [2, 0])

    assert list(found) == ["b", "f"]
    assert (found[0], found[-1], found[:1], len(found)) == ("b", "f", ["b"], 2)


def test_packed_blocks_can_change_places_and_items_follow_them() -> None:
    found: DiskList[str] = DiskList("a", in_memory=0)
    for part in ("bc", "def"):
        found.add_packed(packed(part))
    found.add_packed(packed(""))
    found.reorder_blocks([2, 0, 1])
    found.append("g")

    assert "".join(found) == "defabcg"
    assert [found[index] for index in (0, 3, 4, 6)] == ["d", "a", "b", "g"]
    with pytest.raises(IndexError):
        found[7]


def test_a_closed_list_is_empty_and_gives_its_disk_space_back(tmp_path: Path) -> None:
    found = DiskList(range(5000), folder=tmp_path, in_memory=0)
    found.close()

    assert list(found) == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_a_name_leaves_nothing_in_its_folder(tmp_path: Path) -> None:
    file = ScratchFile(tmp_path)

    assert [file.append(part) for part in (b"abc", b"", b"de")] == [0, 3, 3]
    assert (file.read(1, 3), file.read(4, 0), file.size) == (b"bcd", b"", 5)
    del file
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_that_can_be_written_the_file_lies_elsewhere(tmp_path: Path) -> None:
    file = ScratchFile(tmp_path / "nowhere")
    file.append(b"abc")

    assert file.read(0, 3) == b"abc"
    assert beside(tmp_path / "nowhere" / "dataset") == tmp_path.resolve()


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def seek(self, place: int) -> None: ...

        def write(self, content: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(ScratchFile, "_opened", lambda self: Full())

    with pytest.raises(UserError, match=r"temporary file in .* No space left on device"):
        DiskList(range(5000), folder=tmp_path, in_memory=0)
