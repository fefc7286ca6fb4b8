"""GPipe's cells of torchgpipe's Table 2: minibatches that fit, and what is recorded."""

import pandas as pd
import pytest

from experiments.torchgpipe.settings import TABLE2
from experiments.torchgpipe.speed import tpu
from pipekit.ledger.claims import load
from pipekit.profiling import LayerProfile, Profile

MEGA = 1e6
LAYER = LayerProfile(
    "layer", 0.003, 0.006, MEGA, MEGA, saved_bytes=200 * MEGA, flops=1
)  # of 8 images
PROFILE = Profile((LAYER,) * 8, rows=8, input_bytes=MEGA)


@pytest.fixture
def estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "_profile", lambda rows: PROFILE)


@pytest.mark.usefixtures("estimated")
def test_the_minibatch_is_halved_until_it_fits() -> None:
    # Four layers a stage: a microbatch of 128 images has 12.8 GB of activations, one of 64 has 6.4.
    assert tpu.bar(1, 2).scenario.minibatch == 64
    assert tpu.bar(4, 2).scenario.minibatch == 128
    with pytest.raises(ValueError, match="fit no image each"):
        tpu.bar(32, 2, minibatch=16)


@pytest.mark.usefixtures("estimated")
def test_speedups_are_over_one_microbatch_on_two() -> None:
    cells = tpu.table().set_index("cell")
    assert cells.loc["m1-n2", ["paper", "simulated"]].tolist() == [1, 1]
    assert cells.loc["m32-n8", "simulated"] > cells.loc["m4-n8", "simulated"] > 1
    found = tpu.findings(cells.reset_index())
    assert len(found) == len(TABLE2) - 1
    assert {each.claim for each in found} <= set(load())
    assert found[-1].value == cells.loc["m32-n8", "simulated"]
    assert "128 images a minibatch" in found[-1].note


def test_the_paper_s_cells_are_read_from_the_ledger() -> None:
    cells = pd.DataFrame(
        {"cell": ["m1-n2", "m4-n4"], "simulated": [1.0, 2.0], "images a minibatch": [64, 128]}
    )
    (only,) = tpu.findings(cells)
    assert (only.claim, only.value) == ("torchgpipe-table2-gpipe-m4-n4", 2.0)
