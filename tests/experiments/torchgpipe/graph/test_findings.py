"""What is claimed of functions, graphs, order and portals holds in small runs."""

from pathlib import Path

import nbformat
import pytest
import torch
from torch import nn

from experiments.torchgpipe.graph import device_order, edges, equality, findings, portals
from experiments.torchgpipe.graph.device_order import Entry, Journal
from pipekit import models
from pipekit.ledger.batches.ranges import read


def test_the_function_and_its_gradients_stay() -> None:
    found = findings.function_findings(equality.mlp(), torch.randn(6, 6), largest=2)
    values = {each.claim.removeprefix("torchgpipe-"): each.value for each in found}
    assert values["eq-partitions-compose"] is values["eq-microbatch-tasks"] is True
    assert 0 < values["eq-gradient-sum"] < 1e-6
    assert values["fork-join-identity"] == [0, 0]


def test_the_notebook_sweeps_over_no_more_devices_than_there_are_layers(repository: Path) -> None:
    notebook = nbformat.read(repository / "notebooks/torchgpipe/graph.ipynb", as_version=4)
    (cell,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    allowed = read(cell.source)["largest"].range
    assert allowed is not None
    layers = len(equality.mlp())
    assert (allowed.allows(layers), allowed.allows(layers + 1)) == (True, False)


def test_figures_and_orders_are_told_from_others() -> None:
    found2 = edges.found2(4, 3)
    first, second, fourth = findings.figure_findings(found2, found2, "a", "b")
    assert (first.value, second.value, fourth.value) == (False, True, True)
    orders = findings.order_findings(found2, largest=2, issues=20, seed=0)
    assert [each.value for each in orders] == [True, True, True, 0, True, True]


def test_a_device_that_waits_before_it_recomputes_is_seen() -> None:
    devices = range(1, 4)
    early = [
        Journal(Entry(what, at) for at, what in enumerate(device_order.expected(d, 3, 4)))
        for d in devices
    ]
    late = [
        Journal(Entry(what, at) for at, what in enumerate(["receive", "F'", "B", "send"]))
        for _ in devices
    ]
    assert [f.value for f in findings.device_findings(early, late)][:3] == [True, True, True]
    assert [f.value for f in findings.device_findings(late, late)][:3] == [False] * 3


@pytest.mark.slow
def test_portals_save_bytes_and_the_skips_of_a_beginning_are_refused() -> None:
    torch.manual_seed(0)
    unet = portals.CountedUNet(models.unet(1, 2), 64)
    assert unet.counted[True].total() < unet.counted[False].total()
    assert unet.frame["link"].tolist()[0] == "1 to 2"
    found = findings.portal_findings(unet, "a.svg")
    assert [each.value for each in found] == [True, True, 0, True]
    assert not findings._unpaired_is_refused([nn.Linear(1, 1), nn.Linear(1, 1)])
