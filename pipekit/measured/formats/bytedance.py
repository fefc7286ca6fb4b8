"""ByteDance's traces of production jobs: one row an operation, as Parquet.

Format: github.com/ByteDance-Seed/StragglerAnalysis ("Understanding Stragglers in Large Model
Training Using What-if Analysis", OSDI 2025).  The names say which operations end together: sends
and receives meet in their order, gathers and scatters on the replicas of a stage, the all-reduce of
embeddings on the first and last stage of a replica, the norm's on all workers.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from pipekit.measured.formats.recording import Recording
from pipekit.measured.messages import Numbers, among, packed

SIGN = "begins with PAR1; columns optype, stage, dp_rank, start_ts"
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mb_id")
_KINDS = {
    "forward-compute": "FORWARD",
    "backward-compute": "BACKWARD",
    "forward-send": "send activation",
    "forward-recv": "recv activation",
    "backward-send": "send gradient",
    "backward-recv": "recv gradient",
}
_MADE = {
    "send activation": ("FORWARD", 0),
    "recv activation": ("FORWARD", -1),
    "send gradient": ("BACKWARD", 0),
    "recv gradient": ("BACKWARD", 1),
}
"""The passes that a message belongs to, and how many stages on its data were made."""
_COMPUTES = {"FORWARD", "BACKWARD", "optimizer", "gc"}
_OF_REPLICAS = {"params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad"}
_OF_STAGES = {"embedding-grads-all-reduce", "optimizer-clip-main-grad"}
"""Collectives of all replicas, and of the first and last stage or of all of them."""


def is_it(path: Path) -> bool:
    """Return whether a file is Parquet."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def read(path: Path) -> Recording:
    """Read a trace, of which steps were sampled."""
    try:
        found = pd.read_parquet(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    if missing := [name for name in COLUMNS if name not in found]:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}: record them, too")
    kind = found.pop("optype").astype("category").cat.rename_categories(_KINDS)
    number = {name: pd.to_numeric(found[name], errors="coerce") for name in found if name != "rank"}
    count = {n: each.where(each.between(0, 2**53), -1).to_numpy(int) for n, each in number.items()}
    stage, chunk = count["stage"], count.get("gmc", np.full(len(found), -1))
    if any((count[name] < 0).any() for name in ("dp_rank", "stage", "step")):
        raise ValueError(f"{path} has rows without a dp_rank, stage or step: the file is damaged")
    if not among(kind, ["FORWARD"]).any():
        raise ValueError(f"{path} has no forward-compute: it is not the trace of a pipeline")
    if "gmc" not in count and "mc" in count:  # the chunk within the stage alone
        chunk = np.where(count["mc"] < 0, -1, count["mc"] * (stage.max() + 1) + stage)
    start = number["start_ts"].to_numpy(float)
    columns = {
        "worker": pd.factorize(found["rank"], sort=True)[0],
        "replica": count["dp_rank"],
        "stage": np.where(chunk < 0, stage, chunk),
        "step": count["step"],
        "kind": kind.array,
        "microbatch": count["mb_id"],
        "start_s": start,
        "end_s": start + number["duration"].to_numpy(float),
        "moves": ~among(kind, _COMPUTES),
    }
    order = np.argsort(start, kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    rows = _joined(pd.DataFrame(columns, copy=False))
    unmet = rows["stage"][among(rows["kind"], ["send activation"])] < 0
    if unmet.mean() * rows["stage"].nunique() > 0.5:  # each stage sends as many
        raise ValueError(f"{path} has messages behind its last stage: a rank's rows are missing")
    by_worker = rows.groupby(["step", "worker"])
    steps = pd.DataFrame({"start_s": by_worker["start_s"].min(), "end_s": by_worker["end_s"].max()})
    # They count the published seconds; on a clock that began long before, those from their first.
    counts = steps["start_s"] <= steps["end_s"] - steps["start_s"]
    steps = steps.assign(start_s=steps["start_s"].mask(counts, 0.0)).reset_index()
    return Recording(rows, path.stem, int(rows["worker"].max()) + 1, steps)


def _joined(rows: pd.DataFrame) -> pd.DataFrame:
    """Return operations with the groups in which they end, and messages with their passes.

    A worker takes part in messages and other communications in the order of its passes.
    """
    kind, stage = rows["kind"], rows["stage"].to_numpy(copy=True)
    microbatch, meets = rows["microbatch"].to_numpy(copy=True), kind.cat.codes.to_numpy(int)
    lane = pd.factorize(packed(rows["step"], rows["worker"]))[0]
    number, own = _counted(packed(lane, meets)), stage.copy()
    last = int(stage[among(kind, ["FORWARD"])].max())
    for name, (op, step) in _MADE.items():
        sent = np.flatnonzero(among(kind, [name]))
        edge = 0 if name in ("recv activation", "send gradient") else last  # no neighbour there
        passes = np.flatnonzero(among(kind, [op]) & (own != edge))
        place = np.full((lane.max() + 1, number.max() + 1), -1)
        place[lane[passes], _counted(lane[passes])] = passes
        at = place[lane[sent], number[sent]]
        stage[sent] = np.where(at < 0, -1, stage[at] + step)
        number[sent] = microbatch[sent] = np.where(at < 0, -1, microbatch[at])
        meets[sent] = -1 - ("gradient" in name)  # both ends of a message
    replica = np.where(among(kind, _OF_REPLICAS), -1, rows["replica"])
    home = np.where(among(kind, _OF_STAGES), -1, stage)
    group = pd.factorize(packed(rows["step"], meets, home, replica, number))[0]
    rows = rows.assign(stage=stage, microbatch=microbatch)
    return rows.assign(group=np.where(rows["moves"], group, -1))


def _counted(keys: Numbers) -> Numbers:
    return np.array(pd.Series(keys).groupby(keys, sort=False).cumcount())
