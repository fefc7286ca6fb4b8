"""The figures' tables pass, and other tables do not."""

import pytest

from pipekit import schedules
from pipekit.papers.pipedream_2bw.timelines import figures
from pipekit.traces import Trace


@pytest.fixture(scope="module")
def grid() -> figures.Grid:
    return figures.Grid(deepest=4)


def test_figures_1_and_3_are_told_from_their_swapping(grid: figures.Grid) -> None:
    gpipe, pipedream = schedules.gpipe(4, 4).take(2), schedules.pipedream(4).take(12)
    right = figures.figure1_findings(gpipe, pipedream, grid)
    assert [each.value for each in right] == [True, True, True, [4, 3, 2, 1]]
    assert figures.figure1_findings(gpipe, schedules.gpipe(4, 12).take(1), grid)[1].value is False
    two = schedules.gpipe(2, 4).take(2), schedules.flush(2, 4).take(2)
    assert [each.value for each in figures.figure3_findings(two, grid)] == [True] * 3
    assert figures.figure3_findings(two[::-1], grid)[0].value is False


def test_figure_2_reads_the_printed_versions_and_flush_does_not(grid: figures.Grid) -> None:
    table = schedules.two_bw(4, 4).take(4)
    slots = Trace.from_schedule(table)
    right = figures.figure2_findings(table, slots, slots)
    assert [each.value for each in right] == [True, 21, 9, 8]
    other = Trace.from_schedule(schedules.flush(4, 4).take(4))
    assert figures.figure2_findings(table, slots, other)[0].value is False
    versions = figures.version_findings(grid, slots)
    assert [each.value for each in versions] == [2, True, True, True, True, True]
    assert figures.version_findings(grid, other)[2].value is False


def test_partitions_and_parallel_pipelines() -> None:
    assert [each.value for each in figures.partition_findings([2, 3])] == [True, True]
    parallel = schedules.replicate(schedules.two_bw(3, 3).take(3), 2)
    assert figures.figure4_finding(parallel).value == [3, 2, 6]
