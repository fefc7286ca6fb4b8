"""torchgpipe's graphs and orders, found in minibatches that are really run."""

import pytest
import torch

from experiments.torchgpipe.graph import device_order, equality
from experiments.torchgpipe.graph import edges as graph
from experiments.torchgpipe.graph.edges import PaperTask
from experiments.torchgpipe.graph.picture import draw, frame
from experiments.torchgpipe.graph.random_issues import out_of_order


def test_figures_have_the_papers_nodes() -> None:
    count = {1: {"F": 12, "B": 12}, 2: {"F": 12, "B": 12, "F'": 9}}
    for number, edges in (1, graph.figure1(4, 3)), (2, graph.figure2(4, 3)):
        tasks = {task for edge in edges for task in edge}
        kinds = [task.kind for task in tasks]
        assert {kind: kinds.count(kind) for kind in set(kinds)} == count[number]
        assert not any(task.kind == "F'" and task.i == 4 for task in tasks)


@pytest.mark.parametrize(("m", "n"), [(4, 3), (2, 2), (1, 3)])
def test_a_real_minibatch_has_the_figures_edges(m: int, n: int) -> None:
    assert graph.found1(m, n) == graph.figure1(m, n)
    assert graph.found2(m, n) == graph.figure2(m, n)


def test_without_edges_the_graph_lacks_the_order() -> None:
    edges, _, _ = graph.run(*graph.pipelined(3, 2, without=("order",)))
    assert (PaperTask("B", 2, 1), PaperTask("B", 1, 1)) not in graph.closed(edges)
    edges, _, _ = graph.run(*graph.pipelined(3, 2))
    assert (PaperTask("B", 2, 1), PaperTask("B", 1, 1)) in edges


def test_only_edges_make_an_order_out_of_any_issue() -> None:
    assert out_of_order(3, 2, 20, in_order=True) == 0
    assert out_of_order(3, 2, 20, in_order=False) > 0


def test_cycles() -> None:
    _, orders, issued = graph.run(*graph.pipelined(3, 2))
    assert graph.cycles(issued) == [{(1, 1)}, {(1, 2), (2, 1)}, {(2, 2), (3, 1)}, {(3, 2)}]
    assert graph.clock_cycles(3, 2) == graph.cycles(issued)
    assert graph.follows_the_order(orders, 3)
    assert not graph.follows_the_order([tasks[::-1] for tasks in orders], 3)


def test_what_devices_do() -> None:
    journals = device_order.journals(3, 2, backward_s=0.02)
    for device, journal in enumerate(journals, 1):
        assert journal.names == device_order.expected(device, 3, 2)
    assert all(device_order.recomputes_before_the_gradient(journals[0]))


def test_stock_checkpoints_wait_for_the_gradient() -> None:
    journals = device_order.journals(2, 2, stock=True)
    assert journals[0].names[-6:] == ["receive", "F'", "B"] * 2
    assert not any(device_order.recomputes_before_the_gradient(journals[0]))


def test_equalities() -> None:
    assert (
        0 <= equality.pipelined_gradient_difference(equality.mlp(), torch.randn(6, 6), 3, 2) < 1e-6
    )
    train, evaluation = equality.batch_norm_differences(2, 8)
    assert train > 0
    assert evaluation == 0
    assert equality.recomputation_difference(3, 6) == 0
    assert equality.fork_and_join(3, 2) == (0, 0)
    assert equality.trains(equality.mlp, [3, 5], 3, 30)


def test_picture() -> None:
    edges = graph.figure2(2, 2)
    figure = draw(edges, "title")
    assert len(figure.layout.annotations) == 10
    assert len(frame(edges)) == len(edges)
