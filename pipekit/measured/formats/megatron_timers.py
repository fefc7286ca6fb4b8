"""Megatron-LM's timers in a log: sums over the passes of an iteration, so that none has a time.

Format: github.com/NVIDIA/Megatron-LM, megatron/core/timers.py, ``--timing-log-level 2``; behind the
line of an iteration, "elapsed time per iteration (ms): 744.0", stand the means of its timers:
the least and the most of all ranks, the most, or each rank's (``--timing-log-option minmax``,
``max`` or ``all``).  Before megatron.core they stood in one line, "time (ms) | forward-compute:
250.00 | ...", of the last rank alone, which counts as the most here.  Megatron-DeepSpeed writes
iterations in seconds, too, or as "elapsed_time_per_iteration_ms=744.0"; launchers put a name before
each line ("[default7]:" of torchrun, "7: " of srun).  A second heading behind an iteration's is of
what lies between iterations (save-checkpoint, evaluate), which is no part of one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pipekit.units import SECONDS, written

_BEGINNING = 10_000_000
"""Bytes in which a log's first timers are looked for."""
_ELAPSED = re.compile(r"elapsed[ _]time[ _]per[ _]iteration[ _]\(?(ms|s)\)?[:=] *([\d.]+)")
_HEADING = re.compile(r"across ranks \(ms\):|time \(ms\) \|")
_TIMER = re.compile(r"\b([a-z][\w/-]*) \.+: \(?([\d.]+)(?:, ([\d.]+)\))?\s*$")
_IN_A_LINE = re.compile(r"\| ([a-z][\w/-]*): ([\d.]+)")
_OF_RANKS, _RANK = re.compile(r"\b([a-z][\w/-]*):\s*$"), re.compile(r"\brank +\d+: ([\d.]+)\s*$")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_COMPUTE = ("forward-compute", "backward-compute")
_COUNTS = {
    "stages": re.compile(r"\bpipeline_model_parallel_size \.+ (\d+)"),
    "chunks": re.compile(r"\bvirtual_pipeline_model_parallel_size \.+ (\d+)"),
    "microbatches": re.compile(r"number of micro-?batches to constant (\d+)"),
}


@dataclass(frozen=True)
class TimerLog:
    """The mean iteration of a log, without its first one; ``print`` shows it in some lines.

    Of each timer there are least_s and most_s, the seconds of an iteration on the rank that takes
    least and most; least_s is NaN where only the most was logged.
    """

    name: str  # of the file
    iterations: int
    step_s: float
    timers: pd.DataFrame
    counts: dict[str, int]  # of stages, chunks and microbatches, as far as the log has them

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.name}: {self.iterations} iterations of {written(self.step_s, SECONDS)} "
            f"(recorded); timers sum up all passes of one, so that no wait has a cause"
        )
        compute = self.timers.reindex(_COMPUTE)
        least, most = (compute[name].sum(skipna=False) / self.step_s for name in compute)
        if most == most:
            shown = f"at least {least:.0%} and " if least == least else ""
            yield f"Each rank computes for {shown}at most {most:.0%} of an iteration"
        for name, row in compute.dropna().iterrows():
            differs = row["most_s"] - row["least_s"]
            yield (
                f"{name}: the slowest rank takes {row['most_s'] / row['least_s'] - 1:.0%} longer "
                f"than the fastest, {written(differs, SECONDS)} an iteration"
            )
        for name, row in self.timers.sort_values("most_s", ascending=False).iterrows():
            if name not in (*_COMPUTE, "forward-backward") and row["most_s"] > 0.01 * self.step_s:
                yield f"{name}: up to {row['most_s'] / self.step_s:.0%} of an iteration"
        if {"stages", "microbatches"} <= self.counts.keys():
            stages, microbatches = self.counts["stages"], self.counts["microbatches"]
            chunks = self.counts.get("chunks", 1)
            bubble = (stages - 1) / (chunks * microbatches + stages - 1)
            yield (
                f"With {stages} equal stages and {microbatches} microbatches 1F1B leaves workers "
                f"idle for {bubble:.0%} (exact; Megatron-LM, section 2.2)"
            )


def is_it(path: Path) -> bool:
    """Return whether a file is a log with such timers."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(_BEGINNING)
    timers = b"across ranks (ms):" in begin or b"time (ms) |" in begin  # seldom: decoded only then
    return timers and _ELAPSED.search(begin.decode(errors="replace")) is not None


def read(path: Path) -> TimerLog:
    """Read a log; ValueError if it has less than two iterations with timers."""
    text = _COLOURS.sub("", path.read_text(encoding="utf-8", errors="replace"))
    rows: list[tuple[int, str, float]] = []
    elapsed: list[float] = []
    name, headings = "", 0
    for line in text.splitlines():
        if found := _ELAPSED.search(line):
            elapsed.append(float(found[2]) / (1e3 if found[1] == "ms" else 1))
            headings = 0
        headings += _HEADING.search(line) is not None
        if headings > 1:
            continue
        if "time (ms) |" in line:
            logged = _IN_A_LINE.findall(line, line.index("time (ms) |"))
            rows += [(len(elapsed), timer, float(ms) / 1e3) for timer, ms in logged]
        elif found := _TIMER.search(line):
            rows += [
                (len(elapsed), found[1], float(each) / 1e3) for each in found.groups()[1:] if each
            ]
        elif found := _RANK.search(line):
            rows.append((len(elapsed), name, float(found[1]) / 1e3))
        elif found := _OF_RANKS.search(line):
            name = found[1]
    table = pd.DataFrame(rows, columns=["iteration", "timer", "s"]).query("iteration > 1")
    if table.empty:
        raise ValueError(
            f"{path} has timers of {len(elapsed)} iterations: log two or more, since the first one "
            f"compiles"
        )
    each = table.groupby(["timer", "iteration"])["s"].agg(["min", "max", "size"])
    each["min"] = each["min"].where(each["size"] > 1)
    timers = each.groupby("timer")[["min", "max"]].mean()
    counts = {key: int(found[1]) for key, of in _COUNTS.items() if (found := of.search(text))}
    timers.columns = pd.Index(["least_s", "most_s"])
    steps = elapsed[1:]
    return TimerLog(path.name, len(steps), sum(steps) / len(steps), timers, counts)
