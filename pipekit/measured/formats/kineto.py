"""torch.profiler's JSON (Kineto), a file a rank: passes by the labels of their actions.

torch.distributed.pipelining labels the actions of its multi-stage schedules "PP:2F0" (stage,
letter, microbatch) with their waits, and the passes of ScheduleGPipe "Forward 0" and "Backward 0".
:func:`label_actions` labels the passes of all its schedules, without their waiting.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipekit.measured.formats.recording import Recording, events, files, head
from pipekit.schedules import Op

SIGN = "schemaVersion; labels PP:0F0 of torch.distributed.pipelining, a file a rank"
_ACTION = re.compile(r"(?:PP:|pass )(\d+)([FBIW])(\d+)")
_SIMPLE = re.compile(r"(Forward|Backward) (\d+)")
_STEP = re.compile(r"ProfilerStep#(\d+)")
_OPTIMIZER = "optimizer"
_PASS, _UPDATE = "pass ", "Optimizer.step#"
_GPU, _CPU = "gpu_user_annotation", "user_annotation"
_SPANS = (_ACTION, _SIMPLE, _STEP, re.compile(_UPDATE + ".*"))


def label_actions(*stages: Any) -> None:
    """Let torch.profiler see each pass of some stages, without the wait for its input.

    torch labels the actions of its multi-stage schedules with their waits, and those of
    ``Schedule1F1B`` not at all.  Call it once, before the first step.

    Args:
        stages: of torch.distributed.pipelining, ``PipelineStage(...)``; each is changed.
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
    found = [(file, head(file), _spans(events(file))) for file in _profiles(path)]
    rows: list[dict[str, Any]] = []
    ranks: dict[int, Path] = {}
    sizes: set[int] = set()
    for (file, about, spans), by_name in zip(found, _ranks([f for f, *_ in found]), strict=True):
        where = about.get("distributedInfo") or {}
        rank = where.get("rank", by_name)
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
    table = pd.DataFrame(rows)
    table["worker"] = pd.factorize(table["worker"], sort=True)[0]
    table[["start_s", "end_s"]] -= table["start_s"].min()
    return Recording(table, path.stem, len(ranks), notes=tuple(notes))


def _ranks(found: list[Path]) -> Sequence[int]:
    """Return the ranks by the numbers in the files' names that count from 0; else in their order.

    Such names also have hosts, process numbers and times.
    """
    numbers = [[int(digits) for digits in re.findall(r"\d+", str(file))] for file in found]
    if len(found) == 1:
        return numbers[0][-1:] or [0]
    for column in zip(*numbers, strict=False):
        if sorted(column) == list(range(len(found))):
            return column
    return range(len(found))


def _spans(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the spans that say something, of GPUs if these have passes, in order."""
    spans = [
        event
        for event in found
        if event.get("ph") == "X"
        and event.get("cat") in (_GPU, _CPU)
        and any(each.fullmatch(str(event.get("name"))) for each in _SPANS)
    ]
    on_gpu = any(span["cat"] == _GPU and not _STEP.fullmatch(span["name"]) for span in spans)
    cat = _GPU if on_gpu else _CPU
    mine = [span for span in spans if span["cat"] == cat]
    if any(span["name"].startswith(_PASS) for span in mine):  # the others have waits in them
        mine = [span for span in mine if not span["name"].startswith(("PP:", "Forw", "Backw"))]
    return sorted(mine, key=lambda span: span["ts"])


def _passes(spans: list[dict[str, Any]], base: float, rank: int) -> Iterator[dict[str, Any]]:
    """Yield a rank's passes; a step begins where the profiler says so, or a pass comes again."""
    step, seen = 0, set[object]()
    marked = any(_STEP.fullmatch(span["name"]) for span in spans)
    for span in spans:
        if begins := _STEP.fullmatch(span["name"]):
            step = int(begins[1])
            continue
        task = _task(span["name"], rank)
        key = tuple(task.values())
        if not marked and key in seen and task["kind"] != _OPTIMIZER:
            step, seen = step + 1, set()
        seen.add(key)
        start = (base + span["ts"]) / 1e6
        yield task | {"step": step, "start_s": start, "end_s": start + span["dur"] / 1e6}


def _task(name: str, rank: int) -> dict[str, Any]:
    if action := _ACTION.fullmatch(name):
        kind = Op.lettered(action[2]).name
        return {"stage": int(action[1]), "kind": kind, "microbatch": int(action[3])}
    if simple := _SIMPLE.fullmatch(name):
        return {"stage": rank, "kind": simple[1].upper(), "microbatch": int(simple[2])}
    return {"stage": -1, "kind": _OPTIMIZER, "microbatch": -1}
