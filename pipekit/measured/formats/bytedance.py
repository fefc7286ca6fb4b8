"""ByteDance's traces of production jobs: one row an operation, as Parquet.

Format: github.com/ByteDance-Seed/StragglerAnalysis ("Understanding Stragglers in Large Model
Training Using What-if Analysis", OSDI 2025).  The names say which operations end together: sends
and receives meet in their order, gathers and scatters on the replicas of a stage, the all-reduce of
embeddings on the first and last stage of a replica, the norm's on all workers.
"""

from pathlib import Path

import pandas as pd

from pipekit.measured.formats.columns import require_columns, require_sound
from pipekit.measured.recording import Recording

SIGN = "begins with PAR1; columns optype, stage, dp_rank, start_ts"
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mb_id")
_PASSES = {"forward-compute": "FORWARD", "backward-compute": "BACKWARD"}
_MESSAGES = {
    "forward-send": ("send activation", "FORWARD", 0),
    "forward-recv": ("recv activation", "FORWARD", -1),
    "backward-send": ("send gradient", "BACKWARD", 0),
    "backward-recv": ("recv gradient", "BACKWARD", 1),
}
"""What an operation is; the passes that it belongs to, and where their input was made."""
_COMPUTES = {"optimizer", "gc"}
_OF_REPLICAS = {"params-all-gather", "grads-reduce-scatter"}
_OF_A_PIPELINE = {"embedding-grads-all-reduce"}
_OF_ALL = {"optimizer-clip-main-grad"}


def is_it(path: Path) -> bool:
    """Return whether a file is Parquet."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def read(path: Path) -> Recording:
    """Read a trace; steps are put one behind the other, since they were sampled."""
    try:
        rows = pd.read_parquet(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    require_columns(path, rows, COLUMNS)
    rows = rows.rename(columns={"dp_rank": "replica", "mb_id": "microbatch"})
    stage = rows["gmc"].where(rows["gmc"] >= 0, rows["stage"]) if "gmc" in rows else rows["stage"]
    optype = rows["optype"].astype(str)
    whole = ["replica", "step", "microbatch"]
    rows = rows.assign(
        worker=pd.factorize(rows["rank"], sort=True)[0],
        stage=stage.astype(int),
        kind=optype,
        start_s=rows["start_ts"].astype(float),
        end_s=rows["start_ts"].astype(float) + rows["duration"].astype(float),
        **{name: rows[name].astype(int) for name in whole},
    )
    require_sound(path, rows)
    by_step = rows.groupby("step")
    first, took = by_step["start_s"].transform("min"), by_step["end_s"].transform("max")
    # Seconds of the step as published; on a clock that began long before, of its first operation.
    rows[["start_s", "end_s"]] -= first.where(first > took - first, 0.0).to_numpy()[:, None]
    last = rows.groupby("step")["end_s"].max()
    steps = pd.DataFrame({"step": last.index, "end_s": last.cumsum().to_numpy()})
    steps.insert(1, "start_s", steps["end_s"] - last.to_numpy())
    begins = steps.set_index("step")["start_s"].reindex(rows["step"]).to_numpy()
    rows[["start_s", "end_s"]] += begins[:, None]
    is_pass = optype.isin(list(_PASSES)).to_numpy()
    columns = ["worker", "replica", "stage", "step", "microbatch", "start_s", "end_s"]
    frame = rows.loc[is_pass, columns].assign(op=optype[is_pass].map(_PASSES).to_numpy())
    other = rows.loc[~is_pass, [*columns, "kind"]].reset_index(drop=True)
    return Recording(
        frame,
        path.stem,
        int(rows["worker"].max()) + 1,
        other=_joined(other, frame, int(frame["stage"].max()) + 1),
        steps=steps,
    )


def _joined(other: pd.DataFrame, frame: pd.DataFrame, stages: int) -> pd.DataFrame:
    """Return the operations with the groups in which they end, and messages with their passes."""
    other = other.sort_values(["step", "worker", "kind", "start_s"], kind="stable")
    number = other.groupby(["step", "worker", "kind"]).cumcount()
    kind, meets = other["kind"], other[["step", "kind", "stage", "replica"]].copy()
    meets.loc[kind.isin(_OF_REPLICAS), "replica"] = -1
    meets.loc[kind.isin(_OF_A_PIPELINE), "stage"] = -1
    meets.loc[kind.isin(_OF_ALL), ["stage", "replica"]] = -1
    meets["number"] = number
    for name, (called, op, step) in _MESSAGES.items():
        here = (kind == name).to_numpy()
        end = 0 if (step == -1 or name == "backward-send") else stages - 1  # has no neighbour there
        passes = frame[(frame["op"] == op) & (frame["stage"] != end)]
        made = _passes(passes, other[here].assign(number=number[here]))
        made["stage"] += step
        other.loc[here, ["stage", "microbatch"]] = made.to_numpy()
        other.loc[here, "kind"] = called
        meets.loc[here, ["stage", "number"]] = made.to_numpy()
        meets.loc[here, "kind"] = called[5:]  # without the end that it is
    moves = ~kind.isin(_COMPUTES)
    group = meets.groupby([*meets], sort=False).ngroup()
    return other.assign(moves=moves, group=group.where(moves, -1))


def _passes(passes: pd.DataFrame, sent: pd.DataFrame) -> pd.DataFrame:
    """Return stage and microbatch of messages: a worker sends them in the order of its passes."""
    passes = passes.sort_values(["step", "worker", "start_s"], kind="stable")
    keys = ["step", "worker", "number"]
    passes = passes.assign(number=passes.groupby(["step", "worker"]).cumcount())
    found = sent[keys].merge(passes[[*keys, "stage", "microbatch"]], on=keys, how="left")
    return found[["stage", "microbatch"]].fillna(-1).astype(int)
