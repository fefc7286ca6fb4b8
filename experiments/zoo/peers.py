"""Which other projects have which method, looked up in their code.

An empty entry means that it was not found there.  Files were read in November 2026; a commit is
named where the file was read at one.
"""

from collections.abc import Mapping
from types import MappingProxyType

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
"""By method, where each project has it."""


def peers_of(name: str) -> str:
    """Return in one line who else has a method, and where."""
    return "; ".join(f"{project}: {where}" for project, where in PEERS[name].items())
