"""torchgpipe's graphs and orders, found in minibatches that are really run."""

import pytest

from experiments.torchgpipe import graph
from experiments.torchgpipe.graph import PaperTask


def test_figures_have_the_papers_nodes() -> None:
    count = {1: {"F": 12, "B": 12}, 2: {"F": 12, "B": 12, "F'": 9}}
    for number, edges in (1, graph.figure1(4, 3)), (2, graph.figure2(4, 3)):
        tasks = {task for edge in edges for task in edge}
        kinds = [task.kind for task in tasks]
        assert {kind: kinds.count(kind) for kind in set(kinds)} == count[number]
        assert not any(task.kind == "F'" and task.i == 4 for task in tasks)


@pytest.mark.parametrize(("m", "n"), [(2, 2), (1, 3)])
def test_a_real_minibatch_has_the_figures_edges(m: int, n: int) -> None:
    assert graph.found1(m, n) == graph.figure1(m, n)
    assert graph.found2(m, n) == graph.figure2(m, n)


def test_without_edges_the_graph_lacks_the_order() -> None:
    edge = (PaperTask("B", 2, 1), PaperTask("B", 1, 1))
    assert edge not in graph.closed(graph.run(3, 2, without=("order",)).edges)
    assert edge in graph.run(3, 2).edges


def test_only_edges_make_an_order_out_of_any_issue() -> None:
    assert graph.out_of_order(3, 2, 20, in_order=True) == 0
    assert graph.out_of_order(3, 2, 20, in_order=False) > 0


def test_cycles() -> None:
    _, orders, issued = graph.run(3, 2)
    assert graph.cycles(issued) == [{(1, 1)}, {(1, 2), (2, 1)}, {(2, 2), (3, 1)}, {(3, 2)}]
    assert graph.clock_cycles(3, 2) == graph.cycles(issued)
    assert graph.follows_the_order(orders, 3)
    assert not graph.follows_the_order([tasks[::-1] for tasks in orders], 3)
