"""The tables of what was simulated, emulated and measured, and which projects have a method."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from experiments.zoo.closed_forms import FORMS, Setting
from experiments.zoo.comparison import NAMES, activations, schedule
from experiments.zoo.gains import gain

QUARTILES = [0.25, 0.5, 0.75]

# Files were read in November 2026; a commit is named where a file was read at one.
TORCH = "torch.distributed.pipelining"
ZERO_BUBBLE = "sail-sg/zero-bubble-pipeline-parallelism"
MEGATRON = "NVIDIA/Megatron-LM"
DUALPIPE = "deepseek-ai/DualPipe"
ALPA = "alpa-projects/alpa"
CHIMERA = "Shigangli/Chimera"
PICTURES = "Victarry/PP-Schedule-Visualization"

FILES: Mapping[str, str] = MappingProxyType(
    {
        TORCH: "torch/distributed/pipelining/schedules.py (2.11 to 2.15)",
        ZERO_BUBBLE: "megatron/core/pipeline_parallel/zerobubble/scheduler",
        MEGATRON: "megatron/core/pipeline_parallel",
        ALPA: "alpa/pipeline_parallel/schedules.py at 080cf63",
        DUALPIPE: "README.md at 89f5de1, dualpipe/dualpipe.py",
        CHIMERA: "README.md at 052379b, and that of its branch Chimera-BERT",
        PICTURES: "src/strategies.py: timelines and their lengths, nothing is run",
    }
)
"""What was read of each project."""

PEERS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "gpipe": {TORCH: "ScheduleGPipe", ALPA: "GpipeSchedule", CHIMERA: "a baseline"},
        "flush": {
            TORCH: "Schedule1F1B",
            ZERO_BUBBLE: "basic1f1b.py",
            MEGATRON: "schedules.py",
            ALPA: "PipeDreamFlush",
            CHIMERA: "a baseline",
            PICTURES: "generate_1f1b_schedule",
        },
        "eager": {ALPA: "OverlapFriendlyPipeDreamSchedule"},
        "interleaved": {
            TORCH: "ScheduleInterleaved1F1B",
            ZERO_BUBBLE: "vpp.py",
            MEGATRON: "schedules.py",
            PICTURES: "generate_1f1b_interleave_schedule",
        },
        "looped-bfs": {TORCH: "ScheduleLoopedBFS"},
        "hanayo": {},
        "zb-h1": {
            ZERO_BUBBLE: "zb.py, by a search for measured costs",
            PICTURES: "generate_zero_bubble_1p_schedule",
        },
        "zb-h2": {ZERO_BUBBLE: "zb.py, by a search with twice the memory"},
        "interleaved-zero-bubble": {TORCH: "ScheduleInterleavedZeroBubble"},
        "zb-v": {TORCH: "ScheduleZBVZeroBubble", ZERO_BUBBLE: "zbv.py, by a search"},
        "chimera": {CHIMERA: "chimera/chimera_bert, also by forward doubling"},
        "dualpipe": {
            DUALPIPE: "dualpipe.py",
            PICTURES: "generate_dualpipe_schedule",
        },
        "dualpipe-v": {TORCH: "ScheduleDualPipeV", DUALPIPE: "dualpipev.py"},
        "v-half": {ZERO_BUBBLE: "zbv_greedy.py"},
        "v-min": {ZERO_BUBBLE: "zbv_greedy.py"},
    }
)
"""By method, where each project has it, as far as it was found there."""


def tables(folder: Path, emulated: Setting) -> dict[str, pd.DataFrame]:
    """Return all tables by name; what has not been measured yet is empty or missing.

    Args:
        folder: with ``emulated.csv``, and if there are, ``trained.csv``, ``pairs.csv`` and
            ``predicted.csv``.
        emulated: of the emulated runs.
    """
    gains = gains_over_flush(pd.read_csv(folder / "emulated.csv"))
    trained = _read(folder / "trained.csv", ["name", "measured_s"])
    found = {"methods": methods(gains, trained, emulated), "gains": gains}
    if (folder / "pairs.csv").exists():
        predicted = pd.read_csv(folder / "predicted.csv")
        found["two_cores"] = two_cores(pd.read_csv(folder / "pairs.csv"), predicted)
    return found


def written(folder: str | os.PathLike[str]) -> dict[str, pd.DataFrame]:
    """Return the tables that a folder has of :func:`tables`, by name."""
    paths = (Path(folder, f"{name}.csv") for name in ("methods", "gains", "two_cores"))
    return {path.stem: pd.read_csv(path) for path in paths if path.exists()}


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=columns)


def gains_over_flush(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each method's simulated and emulated gain; emulated seconds are medians."""
    rows = rows.fillna({"overlap": 0.0})
    groups = rows.groupby(["name", "method", "overlap"], sort=False)
    table = groups.agg(
        simulated_s=("simulated_s", "median"),
        emulated_s=("emulated_s", "median"),
        fastest_s=("emulated_s", "min"),
        slowest_s=("emulated_s", "max"),
        runs=("emulated_s", "size"),
    ).reset_index()
    flush = table[table["name"] == "flush"].iloc[0]
    for label in ("simulated", "emulated"):
        table[f"{label} gain, %"] = 100 * (flush[f"{label}_s"] / table[f"{label}_s"] - 1)
    faster = (100 + table["emulated gain, %"]) / (100 + table["simulated gain, %"])
    table["emulated over simulated speed-up"] = faster
    table["overlap"] = table["overlap"].replace(0.0, None)
    return table


def methods(gains: pd.DataFrame, trained: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    """Return a row a method: closed form, simulated, emulated, measured, and who else has it."""
    apart = gains[gains["overlap"].isna()].set_index("name")
    measured = trained.groupby("name")["measured_s"].median()
    rows = []
    for name in NAMES:
        form = FORMS.get(name)
        rows.append(
            {
                "method": schedule(name, setting).name,
                "bubble of the worst worker": form.bubble.text if form else "no closed form",
                "of": form.part if form else "",
                "where it holds": form.holds.text if form else "",
                "source": form.paper if form else "",
                "activations (microbatches, exact)": activations(name, setting),
                "gain over Flush, % (simulated, 4 workers)": apart.loc[name, "simulated gain, %"],
                "gain over Flush, % (emulated, 4 workers)": apart.loc[name, "emulated gain, %"],
                "gain over Flush, % (measured, 2 workers)": (
                    gain(measured, name) if name in measured and "flush" in measured else None
                ),
                "who else has it": peers_of(name),
            }
        )
    return pd.DataFrame(rows)


def two_cores(pairs: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return what ZB-H1 gained over Flush on two cores, run in turn, with its quartiles."""
    rows = []
    for network, own in pairs.groupby("network", sort=False):
        low, median, high = (100 * (own["flush"] / own["zb-h1"] - 1)).quantile(QUARTILES)
        simulated = predicted[predicted["network"] == network].median(numeric_only=True)
        rows.append(
            {
                "network": network,
                "pairs": len(own),
                "Flush, s (measured)": own["flush"].median(),
                "ZB-H1, s (measured)": own["zb-h1"].median(),
                "ZB-H1's gain, % (measured)": median,
                "lower quartile": low,
                "upper quartile": high,
                "ZB-H1's gain, % (simulated)": gain(simulated, "zb-h1"),
            }
        )
    return pd.DataFrame(rows)


def peers_of(name: str) -> str:
    """Return in one line who else has a method, and where."""
    return "; ".join(f"{project}: {where}" for project, where in PEERS[name].items())
