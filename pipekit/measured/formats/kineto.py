"""torch.profiler's JSON (Kineto), a file a rank: passes by the labels of their actions.

torch.distributed.pipelining labels the actions of its multi-stage schedules "PP:2F0" (stage,
letter, microbatch), and the passes of ScheduleGPipe "Forward 0" and "Backward 0".
:func:`pipekit.measured.label_actions` labels those of all its schedules, without their waiting.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipekit.measured.formats.columns import require_sound
from pipekit.measured.formats.json_events import content, events, is_json
from pipekit.measured.recording import Recording
from pipekit.schedules import Op

SIGN = "schemaVersion; labels PP:0F0 of torch.distributed.pipelining, a file a rank"
_ACTION = re.compile(r"(?:PP:|pass )(\d+)([FBIW])(\d+)")
_SIMPLE = re.compile(r"(Forward|Backward) (\d+)")
_STEP = re.compile(r"ProfilerStep#(\d+)")
_OPTIMIZER = "optimizer"
_PASS, _UPDATE = "pass ", "Optimizer.step#"
_GPU, _CPU = "gpu_user_annotation", "user_annotation"


def is_it(path: Path) -> bool:
    """Return whether there are files of torch.profiler's."""
    return next(_files(path), None) is not None


def _files(path: Path) -> Iterator[Path]:
    """Yield the profiles in a folder and below it, or the one file."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        named = path.is_file() or file.name.endswith((".json", ".json.gz"))
        if named and is_json(file) and "schemaVersion" in _head(file):
            yield file


def _head(path: Path) -> dict[str, Any]:
    found = content(path)
    return found if isinstance(found, dict) else {}


def read(path: Path) -> Recording:
    """Read a folder of ranks, or the file of one."""
    rows: list[dict[str, Any]] = []
    ranks: dict[int, Path] = {}
    sizes: set[int] = set()
    found = list(_files(path))
    for file, by_name in zip(found, _ranks(found), strict=True):
        about = _head(file).get("distributedInfo") or {}
        rank = about.get("rank", by_name)
        if rank in ranks:
            raise ValueError(f"{file} and {ranks[rank]} are both of rank {rank}: leave one out")
        ranks[rank] = file
        if "world_size" in about:
            sizes.add(about["world_size"])
        base = _head(file).get("baseTimeNanoseconds", 0) / 1e3
        rows += [row | {"rank": rank} for row in _passes(events(file), base, rank)]
    if not rows:
        raise ValueError(
            f"{path} has no actions of a pipeline (PP:0F0, ...): use a schedule of "
            f"torch.distributed.pipelining, and pipekit.measured.label_actions(*stages)"
        )
    table = pd.DataFrame(rows)
    table["worker"] = pd.factorize(table.pop("rank"), sort=True)[0]
    table[["start_s", "end_s"]] -= table["start_s"].min()
    require_sound(path, table)
    is_pass = table["op"] != _OPTIMIZER
    updates = (
        table[~is_pass].rename(columns={"op": "kind"}).assign(replica=0, moves=False, group=-1)
    )
    missing = (f"{len(ranks)} of {size} ranks were recorded" for size in sizes - {len(ranks)})
    other = updates if len(updates) else None
    return Recording(table[is_pass], path.stem, len(ranks), other=other, notes=tuple(missing))


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


def _passes(found: list[dict[str, Any]], base: float, rank: int) -> Iterator[dict[str, Any]]:
    """Yield a rank's passes; a step begins where the profiler says so, or a pass comes again."""
    spans = [
        event for event in found if event.get("ph") == "X" and event.get("cat") in (_GPU, _CPU)
    ]
    spans.sort(key=lambda event: event["ts"])
    on_gpu = any(_pass(span, rank) and span["cat"] == _GPU for span in spans)
    cat = _GPU if on_gpu else _CPU
    labelled = any(str(span["name"]).startswith(_PASS) for span in spans if span["cat"] == cat)
    step, seen, marked = (
        0,
        set[object](),
        any(_STEP.fullmatch(str(span.get("name"))) for span in spans),
    )
    for span in spans:
        if span["cat"] != cat:
            continue
        if begins := _STEP.fullmatch(str(span["name"])):
            step = int(begins[1])
        elif labelled and not str(span["name"]).startswith((_PASS, _UPDATE)):
            continue  # with its wait
        elif task := _pass(span, rank):
            key = tuple(task.values())
            if not marked and key in seen and task["op"] != _OPTIMIZER:
                step, seen = step + 1, set()
            seen.add(key)
            start = (base + span["ts"]) / 1e6
            yield task | {"step": step, "start_s": start, "end_s": start + span["dur"] / 1e6}


def _pass(span: dict[str, Any], rank: int) -> dict[str, Any] | None:
    name = str(span.get("name"))
    if action := _ACTION.fullmatch(name):
        op = Op.lettered(action[2]).name
        return {"stage": int(action[1]), "op": op, "microbatch": int(action[3])}
    if name.startswith(_UPDATE):
        return {"stage": -1, "op": _OPTIMIZER, "microbatch": -1}
    if simple := _SIMPLE.fullmatch(name):
        return {"stage": rank, "op": simple[1].upper(), "microbatch": int(simple[2])}
    return None
