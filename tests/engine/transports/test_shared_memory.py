"""Memory that processes share."""

import os

import pytest

from pipekit.engine.transports.shared_memory import FIRST_BYTES, Slab


@pytest.mark.parametrize("has_memfd", [True, False])
def test_every_map_shows_the_same(has_memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    slab, other = Slab(), Slab.__new__(Slab)
    other._fd, other._map = os.dup(slab._fd), None
    starts = [slab.allocate(size) for size in (100, FIRST_BYTES // 2, FIRST_BYTES, 10)]
    maps = []
    for number, start in enumerate(starts):
        slab.map(start)[start] = number
        maps.append(other.map(start))
        assert maps[-1][start] == number
    slab.map(0)[0] = 77
    assert [memory[0] for memory in maps] == [77] * 4
    slab.close()
    other.close()


def test_pieces_do_not_overlap_nor_lie_across_what_was_mapped() -> None:
    slab, end = Slab(), 0
    for size in (4096, 1 << 19, 1 << 20, 64, 1 << 23, 1 << 22):
        start = slab.allocate(size)
        assert start >= end
        end = start + size
        assert end <= len(slab.map(start))
    slab.close()


def test_after_closing_the_file_is_not_mistaken_for_another() -> None:
    slab = Slab()
    slab.close()
    with pytest.raises(OSError, match="Bad file"):
        slab.map(0)


@pytest.mark.parametrize("has_memfd", [True, False])
def test_it_has_no_name_so_it_ends_with_its_last_holder(
    has_memfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    slab = Slab()
    assert os.fstat(slab._fd).st_nlink == 0
    slab.close()
