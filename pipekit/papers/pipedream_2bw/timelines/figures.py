"""Figures 1 to 4 of PipeDream-2BW: tables of tasks held against closed forms (2, 3.1 to 3.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

from pipekit import schedules
from pipekit.papers.findings import Finding
from pipekit.papers.gpipe.timelines.bubble import bubble
from pipekit.papers.gpipe.timelines.partition import splits
from pipekit.papers.pipedream_2bw.timelines import closed_forms as forms
from pipekit.papers.timelines import starts
from pipekit.schedules import Op, Schedule
from pipekit.traces import Trace

BATCHES = 5
"""Of a table that is checked for every (d, m)."""

ORDERS_OF_FIGURE_3 = [["FFFFBBBB" * 2] * 2, ["FFBFBFBB" * 2, "FBFBFBFB" * 2]]
"""Passes on both workers of GPipe and of PipeDream-Flush, two batches of four microbatches."""


@dataclass(frozen=True)
class Grid:
    """All tables for several depths, up to the deepest, and numbers of microbatches."""

    deepest: int

    @property
    def depths(self) -> list[int]:
        """The depths d that are tried."""
        return [depth for depth in (2, 3, 4, 8, 16) if depth <= self.deepest]

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs (d, m) that are tried, m at least d."""
        return [(d, m) for d in self.depths for m in sorted({d, d + 1, 2 * d, 4 * d})]

    @cached_property
    def tables(self) -> Mapping[tuple[int, int], Schedule]:
        """2BW's tables by (d, m)."""
        return {(d, m): schedules.two_bw(d, m).take(BATCHES) for d, m in self.pairs}

    @cached_property
    def largest_idle_error(self) -> float:
        """How far GPipe's and Flush's bubbles are from the closed form at most."""
        return max(
            abs(Trace.from_schedule(method(d, m).take(1)).bubble - bubble(d, m))
            for method in (schedules.gpipe, schedules.flush)
            for d, m in self.pairs
        )

    @cached_property
    def small_batches(self) -> Mapping[tuple[int, int], bool]:
        """Whether 2BW's table without its guard is refused, for every m below d."""
        return {
            (d, m): forms.refused(partial(forms.unguarded, d, m, 6))
            for d in self.depths
            for m in range(1, d)
        }

    @cached_property
    def refuses_small_batches(self) -> bool:
        """Whether :func:`pipekit.schedules.two_bw` refuses every m below d."""
        return all(forms.refused(partial(schedules.two_bw, d, m)) for d, m in self.small_batches)


def figure1_findings(gpipe: Schedule, pipedream: Schedule, grid: Grid) -> list[Finding]:
    """Return whether GPipe (4 microbatches a batch) and PipeDream are as Figure 1 draws them."""
    count, depth, pairs = pipedream.microbatches, gpipe.stages, grid.pairs
    spans = all(
        Trace.from_schedule(schedules.gpipe(d, m).take(1)).makespan_s == 3 * (m + d - 1)
        for d, m in pairs
    )
    batch = starts(Trace.from_schedule(schedules.gpipe(depth, 4).take(1)))
    drawn = batch == forms.gpipe_starts(depth, 4) and spans
    alternating = forms.one_f_one_b_starts(pipedream.stages, count)
    straight = starts(Trace.from_schedule(pipedream)) == alternating
    makespan = f"makespan 3 (m + d - 1) for {len(pairs)} pairs (d, m)"
    idle = grid.largest_idle_error < 1e-12
    up_to = f"{len(pairs)} pairs (d, m), d up to {grid.deepest}"
    versions = list(schedules.check(pipedream).peak_versions)
    return [
        Finding.exact("2bw-fig1a-gpipe-timeline", drawn, makespan, "figure1.svg"),
        Finding.exact("2bw-fig1b-pipedream-timeline", straight, figure="figure1.svg"),
        Finding.exact("2bw-gpipe-flush-idle", idle, up_to),
        Finding.exact("2bw-pipedream-versions-d", versions),
    ]


def runs_as_printed(emulated: Trace) -> bool:
    """Return whether the emulated run of Figure 2's table, m = 4, read the printed versions."""
    real = emulated.frame[emulated.frame["op"] != "UPDATE"]
    printed = [forms.version_read(k + 1, 4) for k in real["microbatch"]]
    return bool((real["version"] == printed).all())


def figure2_findings(table: Schedule, slots: Trace, emulated: Trace) -> list[Finding]:
    """Return whether 2BW with d = m = 4 is as Figure 2 draws it, in the table and as run."""
    begins = starts(slots)
    drawn = (
        begins == forms.one_f_one_b_starts(4, 16)
        and forms.makes_versions_of(table) == [[3, 7, 11, 15]] * 4
        and forms.reads_as_printed(table, 4)
        and runs_as_printed(emulated)
    )
    as_run = "slots, versions and updates; the versions also in the emulated run"
    first_use = next(t for t in table.workers[3] if t.op is Op.FORWARD and t.version == 1)
    last = forms.last_reader(table, 0)
    newest = max(task.microbatch + 1 for task in last)
    readers = f"last to read it on every worker: {', '.join(map(str, last))}, counted from 0"
    return [
        Finding.exact("2bw-fig2-timeline", drawn, as_run, "figure2.svg"),
        Finding.exact("2bw-fig2-input7-worker3-t21", int(begins["FORWARD", 2, 6]) + 1),
        Finding.exact("2bw-fig2-w4-first-used-input9", first_use.microbatch + 1),
        Finding.exact("2bw-fig2-discard-w0", newest, readers),
    ]


def version_findings(grid: Grid, emulated: Trace) -> list[Finding]:
    """Return what section 3.1 says of versions and microbatches, for all pairs (d, m)."""
    tables, fewer = grid.tables, grid.small_batches
    reports = {pair: schedules.check(each) for pair, each in tables.items()}
    pairs = f"{len(grid.pairs)} pairs (d, m), {BATCHES} batches each"
    most = max(max(report.peak_versions) for report in reports.values())
    everywhere = all(set(report.peak_versions) == {2} for report in reports.values())
    printed = all(forms.reads_as_printed(each, m) for (_, m), each in tables.items())
    alike = all(map(forms.forward_and_backward_agree, tables.values()))
    new = all(
        forms.makes_versions_of(each) == [list(range(m - 1, BATCHES * m, m))] * d
        for (d, m), each in tables.items()
    )
    flying = all(
        report.peak_in_flight == tuple(range(d, 0, -1)) for (d, _), report in reports.items()
    )
    enough = not any(forms.refused(partial(forms.unguarded, d, m, 6)) for d, m in grid.pairs)
    too_few = all(refused for (d, m), refused in fewer.items() if m <= d - 2)
    guarded = (
        "without its guard the table reads versions before they exist for m <= d - 2 and not "
        f"for m = d - 1 ({sum(not r for r in fewer.values())} of {len(fewer)} tables with m < "
        "d would run); schedules.two_bw refuses all m < d"
    )
    same = alike and runs_as_printed(emulated)
    needed = enough and too_few and grid.refuses_small_batches
    return [
        Finding.exact("2bw-max-versions-2", most, f"{pairs}; 2 on every stage: {everywhere}"),
        Finding.exact("2bw-eq-version", printed, pairs),
        Finding.exact("2bw-version-same-fb", same, f"{pairs}, all stages"),
        Finding.exact("2bw-new-version-every-m", new, pairs),
        Finding.exact("2bw-inflight-le-d", flying, f"d - s on stage s, from 0; {pairs}"),
        Finding.exact("2bw-m-ge-d", needed, guarded),
    ]


def figure3_findings(two: Sequence[Schedule], grid: Grid) -> list[Finding]:
    """Return whether two batches of GPipe and Flush are as Figure 3 draws, and all (d, m)."""
    orders = [
        ["".join(t.op.name[0] for t in tasks if t.op is not Op.UPDATE) for tasks in each.workers]
        for each in two
    ]
    first, second = (Trace.from_schedule(each).makespan_s for each in two)
    gaps, longer, flying = set[float](), [], []
    for d, m in grid.pairs:
        flush, whole = schedules.flush(d, m).take(1), schedules.gpipe(d, m).take(1)
        longer.append(Trace.from_schedule(flush).makespan_s - 3 * (m + d - 1))
        counts = [max(schedules.check(each).peak_in_flight) for each in (flush, whole)]
        flying.append(counts == [d, m])
        begins = starts(Trace.from_schedule(grid.tables[d, m]))
        backwards = [[begins["BACKWARD", s, k] for k in range(BATCHES * m)] for s in range(d)]
        gaps |= {b - a for own in backwards for a, b in pairwise(own)}
    drawn = orders == ORDERS_OF_FIGURE_3 and first == second
    told = "orders " + "; ".join(" ".join(each) for each in orders)
    bubbles = not any(longer) and grid.largest_idle_error < 1e-12 and gaps == {3.0}
    pairs = f"{len(grid.pairs)} pairs (d, m)"
    steady = (
        f"{pairs}; with 2BW every worker ends a backward each 3 slots, the time of a forward "
        "and a backward, from its first to its last"
    )
    return [
        Finding.exact("2bw-fig3-two-stage", drawn, told, "figure3.svg"),
        Finding.exact("2bw-flush-bubble", bubbles, steady),
        Finding.exact("2bw-flush-inflight", all(flying), pairs),
    ]


def partition_findings(depths: Sequence[int]) -> list[Finding]:
    """Return how busy inter-layer model parallelism is, and how many splits a chain has."""
    busy = {d: 1 - Trace.from_schedule(schedules.model_parallel(d).take(6)).bubble for d in depths}
    alone = all(abs(share - 1 / d) < 1e-12 for d, share in busy.items())
    shares = ", ".join(f"d = {d}: {share:.4f}" for d, share in busy.items())
    counts = {n: sum(len(list(splits(n, s))) for s in range(1, n + 1)) for n in range(1, 13)}
    exponential = all(count == 2 ** (n - 1) for n, count in counts.items())
    listed = f"all splits of up to {len(counts)} operators, enumerated"
    return [
        Finding.exact("2bw-sec52-interlayer-mp", alone, shares),
        Finding.exact("2bw-partitions-exponential", exponential, listed),
    ]


def figure4_finding(parallel: Schedule) -> Finding:
    """Return depth, width and workers of parallel pipelines."""
    width = max(map(len, parallel.stage_workers))
    value = [parallel.stages, width, len(parallel.workers)]
    return Finding.exact("2bw-fig4-config", value, figure="figure4.svg")
