"""torchgpipe's benchmarks: do the presets fit the ledger and our networks?"""

import pytest

from experiments.torchgpipe.settings import TABLE2, TABLE3, TABLE4, printed_cell, unet_balance
from pipekit.models import PUBLISHED


def test_a_partition_has_all_layers_and_a_batch_whole_microbatches() -> None:
    cells = [*TABLE2.values(), *TABLE3, *TABLE4]
    networks = {cell.network for cell in cells}
    layers = {name: len(PUBLISHED[name].build(device="meta")) for name in networks}
    for cell in cells:
        assert sum(cell.balance) == layers[cell.network], cell.name
        assert cell.rows * cell.microbatches == cell.batch, cell.name
        assert cell.plan().balance == list(cell.balance), cell.name


def test_a_cut_within_a_convolution_goes_to_its_nearer_end() -> None:
    # A cell of one convolution and its pooling: 4 + 2 of their layers.
    whole = 5 * 6 + 4 + 5 * 6 + 1
    assert unet_balance([4, whole - 4], 1) == (1, 21)
    assert unet_balance([5 + 2, whole - 7], 1) == (2, 20)
    assert unet_balance([9, whole - 9], 1) == (3, 19)
    with pytest.raises(ValueError, match="has 65 layers there, not 64"):
        unet_balance([whole - 1], 1)


def test_a_printed_cell_is_the_ledgers() -> None:
    assert printed_cell(4, "pipeline-8-speedup") == 3.105
    assert printed_cell(2, "ours-m1-n2") is None
