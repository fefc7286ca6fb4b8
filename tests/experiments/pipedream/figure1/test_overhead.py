"""Figure 1 of PipeDream: steps by hand, and the takeaways read off a grid."""

from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from experiments.pipedream.figure1 import overhead
from experiments.pipedream.figure1.overhead import DUPLEX, GPUS, HEAVY, LIGHT, SHARED
from pipekit import bucketing
from pipekit.clusters import flat
from pipekit.clusters.paths import all_reduce_bytes
from pipekit.profiling import LayerProfile, Profile

UNEVEN = Profile(
    (
        LayerProfile("conv", forward_s=1, backward_s=2, parameter_bytes=1),
        LayerProfile("pool", forward_s=1, backward_s=1),
        LayerProfile("fc", forward_s=1, backward_s=1, parameter_bytes=8),
    )
)
"""On 2 workers at 2 bytes/s: fc's gradients travel from 1 to 5 s of a backward that ends at 4 s;
conv's follow until 5.5 s."""


@pytest.fixture(autouse=True)
def _a_bucket_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucketing, "BUCKET_BYTES", 1)


def _grid(**overheads: float) -> pd.DataFrame:
    """Return a grid in which the overhead grows with workers and GPUs; given ones start higher."""
    cells = product([*HEAVY, *LIGHT], enumerate(GPUS), [2, 4])
    rows = [
        (model, gpu, workers, overheads.get(model, 50 if model in HEAVY else 10) + 5 * g + workers)
        for model, (g, gpu), workers in cells
    ]
    frame = pd.DataFrame(rows, columns=["model", "gpu", "workers", "overhead"])
    return frame.assign(compute_s=1.0, exchange_s=frame["overhead"] / (100 - frame["overhead"]))


def test_a_simulated_step_is_compute_and_what_is_not_hidden() -> None:
    assert overhead.step_seconds(UNEVEN, flat(2, 2)) == pytest.approx(3 + 4 + 1.5)


def test_a_worker_sends_nearly_twice_the_parameters_at_most() -> None:
    assert [all_reduce_bytes(8, m) for m in (1, 2, 8)] == [0, 8, 14]


def test_one_bandwidth_for_both_directions_is_half_of_it_for_each() -> None:
    shared, duplex = (overhead.links("V100", 4, way) for way in (SHARED, DUPLEX))
    assert duplex.bandwidth(0, 1) == 2 * shared.bandwidth(0, 1) == 1.25e9


def test_a_grid_of_a_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Profile.uniform(2, 0.1, 0.2, parameter_bytes=1e8)
    monkeypatch.setattr(overhead, "profiles", lambda *_: dict.fromkeys(GPUS, costs))
    frame = overhead.grid(["vgg16"], [2, 8])
    assert list(frame["gpu"]) == [gpu for gpu in GPUS for _ in range(2)]
    assert list(frame["compute_s"]) == pytest.approx([0.6] * 6)
    assert frame["exchange_s"][0] == pytest.approx(0.16)
    # 2 workers: each layer's exchange takes 0.08 s, and the second has 0.2 s to be hidden in
    assert frame["step_s"][0] == pytest.approx(0.6 + 0.08)
    assert frame["overhead"][0] == pytest.approx(100 * 0.08 / 0.68)
    shared = overhead.grid(["vgg16"], [2], way=SHARED)
    assert shared["step_s"][0] == pytest.approx(0.6 + 0.16)


def test_a_measured_profile_replaces_the_estimated_one(tmp_path: Path) -> None:
    UNEVEN.save(tmp_path / "alexnet-titan-x.json")
    found = overhead.profiles("alexnet", 0.5, str(tmp_path))
    assert found["Titan X"] == UNEVEN
    assert found["K80"].forward_s > found["V100"].forward_s > 0


def test_orderings_that_hold() -> None:
    found = overhead.orderings(_grid())
    assert (found.heavy_minus_light, found.next_workers, found.next_gpu) == (40, 2, 5)
    assert found.hold


def test_orderings_that_do_not() -> None:
    assert overhead.orderings(_grid(s2vt=9)).heavy_minus_light == -1
    frame = _grid()
    frame.loc[(frame["gpu"] == "V100") & (frame["model"] == "resnet50"), "overhead"] -= 8
    found = overhead.orderings(frame)
    assert found.next_gpu == -3
    assert not found.hold


def test_a_panel_a_gpu() -> None:
    drawn = overhead.figure1(_grid())
    assert [note.text for note in drawn.layout.annotations] == list(GPUS)
    assert drawn.layout.title.text.startswith("At 10 Gbps, up to 64 % of VGG16's step")
    assert len(drawn.data) == 1 + 3 * 5  # and the paper's number


def test_findings_are_of_full_duplex_links_and_name_the_shared_ones() -> None:
    grids = {DUPLEX: _grid(), SHARED: _grid(vgg16=20, s2vt=9)}
    table = overhead.readings(grids).set_index("links (simulated)")
    assert table["all three hold"].to_dict() == {DUPLEX: True, SHARED: False}
    shares = pd.DataFrame({"share of the peak": [0.3, 1.0], f"{DUPLEX} (%)": [12.34, 56.78]})
    found = {each.claim: each for each in overhead.findings(grids, shares, efficiency=0.5)}
    assert found["pipedream-fig1-takeaway-heavy-models"].value == 40
    assert found["pipedream-fig1-overhead-grid"].value is True
    printed = found["pipedream-intro-vgg16-overhead-85"]
    assert printed.value == 64
    assert "as section 3.2's volume has it, 34.0; at 100% of the peak 56.8" in printed.note
    assert [cause.value for cause in printed.causes] == [34]
    heavy = found["pipedream-fig1-takeaway-heavy-models"]
    assert heavy.causes[0].value == pytest.approx(40), "nothing is hidden in this grid"
    assert found["pipedream-fig1-overhead-grid"].causes[0].value is True


def test_of_a_single_count_of_workers_nothing_is_said_about_more() -> None:
    single = _grid()[lambda frame: frame["workers"] == 2]
    shares = pd.DataFrame({"share of the peak": [0.3, 1.0], f"{DUPLEX} (%)": [12.34, 56.78]})
    found = overhead.findings({DUPLEX: single, SHARED: single}, shares, efficiency=0.5)
    assert "pipedream-fig1-takeaway-workers" not in [each.claim for each in found]
    assert all(each.value == each.value for each in found), "a value is not a number"
