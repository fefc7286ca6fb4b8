"""torch.profiler's JSON (Kineto), a file a rank: passes by the labels of their actions.

torch.distributed.pipelining labels the actions of its multi-stage schedules "PP:2F0" (stage,
letter, microbatch) with their waits, and the passes of ScheduleGPipe "Forward 0" and "Backward 0".
:func:`label_actions` labels the passes of all its schedules, without their waiting.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipekit.measured.formats.recording import Recording, events, files, head
from pipekit.schedules import Op

SIGN = "schemaVersion; labels PP:0F0 of torch.distributed.pipelining, a file a rank"
_ACTION = re.compile(r"(?:PP:|pass )(\d+)([FBIW])(\d+)")
_SIMPLE = re.compile(r"(Forward|Backward) (\d+)")
_STEP = re.compile(r"ProfilerStep#(\d+)")
_OPTIMIZER = "optimizer"
_PASS, _UPDATE = "pass ", "Optimizer.step#"
_LABEL = "user_annotation"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("_runtime", "_driver")
Pass = tuple[int, str, int]  # stage, op and microbatch
_SPANS = (_ACTION, _SIMPLE, _STEP, re.compile(_UPDATE + ".*"))


def label_actions(*stages: Any) -> None:
    """Let torch.profiler see each pass of torch's ``PipelineStage`` objects without its wait.

    torch labels the actions of its multi-stage schedules with their waits, and those of
    ``Schedule1F1B`` not at all.  The stages are changed: call it once, before the first step.
    """
    for stage in stages:
        for name, letter in (
            ("forward_one_chunk", "F"),
            ("backward_one_chunk", "B"),
            ("backward_weight_one_chunk", "W"),
        ):
            setattr(stage, name, _labelled(getattr(stage, name), stage.stage_index, letter))


def _labelled(function: Callable[..., Any], stage: int, letter: str) -> Callable[..., Any]:
    from torch.profiler import record_function  # here, since torch takes seconds

    def run(chunk: int, *args: Any, **options: Any) -> Any:
        part = letter if options.get("full_backward", True) else "I"
        with record_function(f"{_PASS}{stage}{part}{chunk}"):
            return function(chunk, *args, **options)

    return run


def is_it(path: Path) -> bool:
    """Return whether there are files of torch.profiler's."""
    return next(_profiles(path), None) is not None


def _profiles(path: Path) -> Iterator[Path]:
    return (file for file in files(path) if "schemaVersion" in head(file))


def read(path: Path) -> Recording:
    """Read a folder of ranks, or the file of one."""
    files = sorted(_profiles(path), key=lambda file: [*map(int, re.findall(r"\d+", str(file)))])
    found = [(file, head(file), _spans(file)) for file in files]
    rows: list[dict[str, Any]] = []
    ranks: dict[int, Path] = {}
    sizes: set[int] = set()
    for number, (file, about, spans) in enumerate(found):
        where = about.get("distributedInfo") or {}
        rank = where.get("rank", number)
        if rank in ranks:
            raise ValueError(f"{file} and {ranks[rank]} are both of rank {rank}: leave one out")
        ranks[rank] = file
        sizes.add(where.get("world_size", len(found)))
        base = about.get("baseTimeNanoseconds", 0) / 1e3
        rows += [row | {"worker": rank} for row in _passes(spans, base, rank)]
    if not rows:
        raise ValueError(
            f"{path} has no actions of a pipeline (PP:0F0, ...): use a schedule of "
            f"torch.distributed.pipelining, and pipekit.measured.label_actions(*stages)"
        )
    if any(size % len(found) for size in sizes):
        raise ValueError(
            f"{path} has {len(found)} of {max(sizes)} ranks: add the files of the others, or keep "
            f"those of one pipeline"
        )
    notes = [f"{len(found)} of {size} ranks were recorded" for size in sizes - {len(found)}]
    if any(_SIMPLE.fullmatch(span["name"]) for *_, spans in found for span in spans):
        notes.append(
            "labels (Forward 0) do not name stages, so that each rank is taken for one: with data "
            "or tensor parallelism use pipekit.measured.label_actions(*stages)"
        )
    table = pd.DataFrame(rows)
    table["worker"] = pd.factorize(table["worker"], sort=True)[0]
    table[["start_s", "end_s"]] -= table["start_s"].min()
    return Recording(table, path.stem, len(ranks), notes=tuple(notes))


def _spans(file: Path) -> list[dict[str, Any]]:
    recorded = events(file)
    mine = [
        event
        for event in recorded
        if event.get("ph") == "X"
        and event.get("cat") == _LABEL
        and any(each.fullmatch(str(event.get("name"))) for each in _SPANS)
    ]
    if any(span["name"].startswith(_PASS) for span in mine):  # the others have waits in them
        mine = [span for span in mine if not span["name"].startswith(("PP:", "Forw", "Backw"))]
    mine.sort(key=lambda span: (span["ts"], -span["dur"]))  # a step's mark before its first pass
    return _over_kernels(mine, _kernels(recorded))


def _kernels(recorded: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return [kernels, (launched, start, end)], as launched, without NCCL's, which wait."""
    kernels, launched = [], {}
    for event in recorded:
        cat, about = str(event.get("cat")), event.get("args") or {}
        if cat in _ON_GPU and not str(event.get("name")).startswith("nccl"):
            kernels.append((about.get("correlation"), event["ts"], event["ts"] + event["dur"]))
        elif cat.endswith(_LAUNCHES):
            launched[about.get("correlation")] = event["ts"]
    rows = sorted((launched[key], *times) for key, *times in kernels if key in launched)
    return np.array(rows).reshape(-1, 3)


def _over_kernels(spans: list[dict[str, Any]], kernels: np.ndarray) -> list[dict[str, Any]]:
    """Return the spans from the first kernel to the last that were launched within each.

    The profiler's own spans on a GPU lack backwards, which a thread of autograd's launches.
    """
    if not len(kernels):
        return spans
    found, at = [], 0.0
    for span in spans:
        begin, end = np.searchsorted(kernels[:, 0], (span["ts"], span["ts"] + span["dur"]))
        if not _STEP.fullmatch(span["name"]):  # a mark
            own = kernels[begin:end]
            start = own[:, 1].min() if len(own) else max(at, span["ts"])
            at = own[:, 2].max() if len(own) else start
            span = span | {"ts": float(start), "dur": float(at - start)}
        found.append(span)
    return found


def _passes(spans: list[dict[str, Any]], base: float, rank: int) -> Iterator[dict[str, Any]]:
    numbers = iter(_steps([found for span in spans if (found := _pass(span["name"], rank))]))
    marked, step = any(_STEP.fullmatch(span["name"]) for span in spans), 0
    for span in spans:
        if begins := _STEP.fullmatch(span["name"]):
            step = int(begins[1])
            continue
        found = _pass(span["name"], rank)
        step = next(numbers) if found and not marked else step
        stage, kind, microbatch = found or (-1, _OPTIMIZER, -1)
        row = {"stage": stage, "kind": kind, "microbatch": microbatch, "step": step}
        start = (base + span["ts"]) / 1e6
        yield row | {"start_s": start, "end_s": start + span["dur"] / 1e6}


def _steps(passes: Sequence[Pass]) -> Sequence[int]:
    """Return the step of each pass: one ends before a pass comes again.

    The first or the last may be cut off.  The others are whole if counted from the beginning or
    from the end: where fewer backwards are in another step than their forward, and then from where
    they begin with an earlier microbatch.
    """
    if not passes:
        return ()
    ahead, behind = _repeats(passes), _repeats(passes[::-1])[::-1]
    behind = [behind[0] - number for number in behind]

    def torn(steps: Sequence[int]) -> tuple[int, int]:
        begun, lost = set[tuple[int, int, int]](), 0
        for step, (stage, op, microbatch) in zip(steps, passes, strict=True):
            if op == Op.FORWARD.name:
                begun.add((step, stage, microbatch))
            lost += (step, stage, microbatch) not in begun
        return lost, passes[steps.index(steps[-1])][2]

    return min(ahead, behind, key=torn)


def _repeats(passes: Sequence[Pass]) -> list[int]:
    found, seen, count = list[int](), set[Pass](), 0
    for each in passes:
        if each in seen:
            seen, count = set(), count + 1
        seen.add(each)
        found.append(count)
    return found


def _pass(name: str, rank: int) -> Pass | None:
    if action := _ACTION.fullmatch(name):
        return int(action[1]), Op.lettered(action[2]).name, int(action[3])
    simple = _SIMPLE.fullmatch(name)
    return (rank, simple[1].upper(), int(simple[2])) if simple else None
