"""Memory that processes share."""

import os

import pytest

from pipekit.engine.transports.processes.shared_memory import FIRST_BYTES, SharedBuffer


@pytest.mark.parametrize("has_memfd", [True, False])
def test_every_map_shows_the_same(has_memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    buffer, other = SharedBuffer(), SharedBuffer.__new__(SharedBuffer)
    other._hold(os.dup(buffer._fd))
    starts = [buffer.allocate(size) for size in (100, FIRST_BYTES // 2, FIRST_BYTES, 10)]
    maps = []
    for number, start in enumerate(starts):
        buffer.map(start)[start] = number
        maps.append(other.map(start))
        assert maps[-1][start] == number
    buffer.map(0)[0] = 77
    assert [memory[0] for memory in maps] == [77] * 4
    buffer.close()
    other.close()


def test_pieces_do_not_overlap_nor_lie_across_what_was_mapped() -> None:
    buffer, end = SharedBuffer(), 0
    for size in (4096, 1 << 19, 1 << 20, 64, 1 << 23, 1 << 22):
        start = buffer.allocate(size)
        assert start >= end
        end = start + size
        assert end <= len(buffer.map(start))
    buffer.close()


def test_after_closing_the_file_is_not_mistaken_for_another() -> None:
    buffer = SharedBuffer()
    buffer.close()
    with pytest.raises(OSError, match="Bad file"):
        buffer.map(0)


def test_the_file_ends_with_the_object_at_the_latest() -> None:
    """An interrupt may come before whoever made it knows it."""
    buffer = SharedBuffer()
    fd, buffer = buffer._fd, SharedBuffer()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)
    buffer.close()


@pytest.mark.parametrize("has_memfd", [True, False])
def test_it_has_no_name_so_it_ends_with_its_last_holder(
    has_memfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    buffer = SharedBuffer()
    assert os.fstat(buffer._fd).st_nlink == 0
    buffer.close()
