"""AMD Primus's dumps: a folder with a JSON file a pipeline rank, and config.json.

Format: github.com/AMD-AGI/Primus, tools/visualization/pp_vis.  Each rank counts milliseconds from
its own start of an iteration.  With several model chunks a rank the k-th forward is that of
Megatron's interleaved order, unless the file says which it is.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from pipekit.measured.formats.recording import Recording
from pipekit.reading import read_json

SIGN = "a folder with config.json and pp_rank_0.json, ..."
_FILE = re.compile(r"pp_rank_(\d+)\.json(\.gz)?")
_OPS = {"fwd": "FORWARD", "bwd": "BACKWARD", "wgrad": "BACKWARD_WEIGHT"}


class _Config(BaseModel):
    pp_size: int = Field(ge=1, le=10_000)
    vp_size: int | None = None
    vpp_size: int | None = None
    num_mbs: int | None = None

    def chunks(self, forwards: int) -> int:
        """Return the model chunks of a rank that runs so many forwards in an iteration."""
        return self.vp_size or self.vpp_size or forwards // (self.num_mbs or forwards or 1) or 1


class _Iteration(BaseModel):
    model_config = ConfigDict(extra="allow")
    total: float
    fwd_start: list[float]
    fwd_end: list[float]
    bwd_start: list[float]
    bwd_end: list[float]


def is_it(path: Path) -> bool:
    """Return whether it is such a folder, or one of its files."""
    folder = path if path.is_dir() else path.parent
    return (path.is_dir() or bool(_FILE.fullmatch(path.name))) and any(
        _FILE.fullmatch(file.name) for file in folder.iterdir()
    )


def read(path: Path) -> Recording:
    """Read all ranks of a folder."""
    folder = path if path.is_dir() else path.parent
    config = read_json(folder / "config.json", _Config, "Primus's config.json")
    size = config.pp_size
    ranks = {int(name[1]): f for f in folder.iterdir() if (name := _FILE.fullmatch(f.name))}
    for rank in sorted(ranks.keys() ^ set(range(size))):
        lacks = "has a" if rank in ranks else "has no"
        raise ValueError(
            f"{folder} {lacks} pp_rank_{rank}.json: its config.json has {size} ranks, so that it "
            f"is of another run, or files are missing"
        )
    rows: list[dict[str, Any]] = []
    totals: dict[int, float] = {}
    for rank, file in sorted(ranks.items()):
        for step, iteration in read_json(file, dict[int, _Iteration], "a rank's dump").items():
            totals[step] = max(iteration.total / 1e3, totals.get(step, 0.0))
            rows += _rows(file, rank, step, iteration, config)
    steps = pd.DataFrame({"step": [*totals], "start_s": 0.0, "end_s": [*totals.values()]})
    return Recording(pd.DataFrame(rows), folder.name, size, steps, own_clocks=True)


def _rows(
    file: Path, rank: int, step: int, iteration: _Iteration, config: _Config
) -> Iterator[dict[str, Any]]:
    given: dict[str, list[float]] = dict(iteration)
    size, chunks = config.pp_size, config.chunks(len(iteration.fwd_start))
    for name, op in _OPS.items():
        starts, ends = given.get(f"{name}_start") or [], given.get(f"{name}_end") or []
        if len(starts) != len(ends) or len(starts) % chunks:
            raise ValueError(
                f"{file}: iteration {step} has {len(starts)} starts and {len(ends)} ends of {name} "
                f"for {chunks} chunks: the file is cut off"
            )
        place = list(_interleaved(len(starts), size, chunks, backward=name != "fwd"))
        chunk = given.get(f"{name}_chunk") or [each[0] for each in place]
        microbatch = given.get(f"{name}_minibatch") or [each[1] for each in place]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            yield {
                "worker": rank,
                "stage": chunk[number] * size + rank,
                "kind": "BACKWARD_INPUT" if given.get("wgrad_start") and name == "bwd" else op,
                "microbatch": microbatch[number],
                "step": step,
                "start_s": start / 1e3,
                "end_s": end / 1e3,
            }


def _interleaved(count: int, size: int, chunks: int, backward: bool) -> Iterator[tuple[int, int]]:
    """Yield chunk and microbatch of each pass, as Megatron-LM's interleaved schedule has them."""
    for number in range(count):
        group, inside = divmod(number, size * chunks)
        chunk, place = divmod(inside, size)
        yield chunks - 1 - chunk if backward else chunk, group * size + place
