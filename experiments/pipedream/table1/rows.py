"""The rows of PipeDream's Table 1, and what it prints of them (sections 5.1 and 5.2)."""

import re
from typing import NamedTuple

from experiments import study
from pipekit.clusters import Cluster, pipedream_a, pipedream_b

_CLUSTERS = {"A": pipedream_a, "B": pipedream_b}


class Setting(NamedTuple):
    """A network on so many workers of a cluster, "A" or "B"."""

    model: str
    workers: int
    cluster: str

    @property
    def name(self) -> str:
        """As the ledger of claims has it, say "vgg16-4A"."""
        return f"{self.model.removesuffix('-v3')}-{self.workers}{self.cluster}"

    def machines(self) -> Cluster:
        """Return the workers, with the bandwidth that the paper prints."""
        return _CLUSTERS[self.cluster](self.workers)


TABLE1 = FOUR, EIGHT, SIXTEEN, EIGHT_B, INCEPTION, INCEPTION_B, S2VT = (
    Setting("vgg16", 4, "A"),
    Setting("vgg16", 8, "A"),
    Setting("vgg16", 16, "A"),
    Setting("vgg16", 8, "B"),
    Setting("inception-v3", 8, "A"),
    Setting("inception-v3", 8, "B"),
    Setting("s2vt", 4, "A"),
)
"""The rows of Table 1."""

THROUGHPUT = RESNET, ALEXNET = Setting("resnet50", 8, "B"), Setting("alexnet", 8, "B")
"""What section 5.2 reports without end-to-end results."""

CALIBRATED_ON = {"A": (FOUR, S2VT), "B": (EIGHT_B, INCEPTION_B)}
"""The rows whose BSP cells give the one bandwidth of a cluster: those that the ledger has named as
calibration cells from its beginning."""

FITTED = frozenset(CALIBRATED_ON["A"] + CALIBRATED_ON["B"])
"""The rows whose BSP cell is no prediction."""


def printed(setting: Setting, column: str) -> str:
    """Return what Table 1 prints of a row, say in column "pp-over-bsp", read from the ledger."""
    return study.printed(f"pipedream-table1-{setting.name}-{column}")


def printed_number(setting: Setting, column: str) -> float | None:
    """Return the same as a number; None for a setting that is no row of Table 1."""
    return float(printed(setting, column)) if setting in TABLE1 else None


def replicas_of(config: str) -> list[int]:
    """Return the replicas of each stage of a configuration: "2-1-1" is [2, 1, 1]."""
    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", config):
        raise ValueError(f"{config!r} is no configuration: write replicas like 2-1-1")
    return [int(count) for count in config.split("-")]
