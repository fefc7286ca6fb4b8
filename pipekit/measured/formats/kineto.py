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
_OVERLAP = "OVERLAP_F_B"
_GPU, _CPU = "gpu_user_annotation", "user_annotation"
Pass = tuple[int, str, int]
"""Stage, op and microbatch."""
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
    found = [(file, head(file), _spans(file)) for file in _profiles(path)]
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


def _spans(file: Path) -> list[dict[str, Any]]:
    """Return the spans that say something, of GPUs if these have passes, in order."""
    spans = [
        event
        for event in events(file)
        if event.get("ph") == "X"
        and event.get("cat") in (_GPU, _CPU)
        and any(each.fullmatch(str(event.get("name"))) for each in _SPANS)
    ]
    on_gpu = any(span["cat"] == _GPU and not _STEP.fullmatch(span["name"]) for span in spans)
    cat = _GPU if on_gpu else _CPU
    mine = [span for span in spans if span["cat"] == cat]
    if any(span["name"].startswith(_PASS) for span in mine):  # the others have waits in them
        mine = [span for span in mine if not span["name"].startswith(("PP:", "Forw", "Backw"))]
    elif any(str(event.get("name")).endswith(_OVERLAP) for event in events(file)):
        raise ValueError(
            f"{file} has a forward and a backward in one label ({_OVERLAP}): record it with "
            f"pipekit.measured.label_actions(*stages)"
        )
    return sorted(mine, key=lambda span: span["ts"])


def _passes(spans: list[dict[str, Any]], base: float, rank: int) -> Iterator[dict[str, Any]]:
    """Yield a rank's passes; a step begins where the profiler says so, or a pass comes again."""
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

    The first step or the last may be cut off.  Counted from the beginning or from the end, the
    others are whole, which begin with an earlier microbatch.
    """
    ahead, behind = _repeats(passes), _repeats(passes[::-1])[::-1]
    behind = [behind[0] - number for number in behind]
    return min((ahead, behind), key=lambda each: passes[each.index(each[-1])][2]) if passes else ()


def _repeats(passes: Sequence[Pass]) -> list[int]:
    """Return of each pass how often passes had come again by then."""
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
