"""Why pipelines miss Table 1's speedups: waits, links, and one efficiency for all networks."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from experiments.pipedream.table1 import calibration, speeds, traffic
from experiments.pipedream.table1.predictions import Prediction
from experiments.pipedream.table1.rows import TABLE1, Setting, printed_number
from experiments.study.costs import stretched
from experiments.study.published_times import network_times
from pipekit.clusters import TITAN_X
from pipekit.planning import plan


def causes(predictions: Mapping[Setting, Prediction]) -> pd.DataFrame:
    """Return what each step from the planner's formula to the simulation costs, as speedups.

    For the planner's and the paper's configuration of each row of Table 1 the speedups over one
    machine: planned (the formula), simulated, 2 x NOAM (in flight), free links, nominal (links) and
    links (what the busiest one allows), and the paper's.
    """
    return pd.DataFrame(
        {
            "row": row.name,
            "configuration": whose,
            "replicas": chosen.config,
            "planned": one.compute_s / chosen.predicted_s,
            "simulated": one.speedup(chosen, one.cluster),
            "2 x NOAM": one.speedup(chosen, one.cluster, speeds.twice_in_flight),
            "free links": one.speedup(chosen, None),
            "nominal": one.speedup(chosen, one.nominal),
            "links": one.compute_s / traffic.link_seconds(one.profile, chosen, one.cluster),
            "paper": printed_number(row, "pp-speedup"),
        }
        for row, one in ((row, predictions[row]) for row in TABLE1)
        for whose, chosen in (("planner's", one.plan), ("paper's", one.paper_plan))
    )


def slowness_of(inception: Prediction) -> float:
    """Return how many times as slow Inception-v3 had to be to meet its BSP cell.

    Only compute over communication counts: it is the bandwidth that would meet the cell over the
    one fitted for the cluster (simulated).
    """
    wanted = calibration.effective([calibration.cell_of(inception.setting)])
    return wanted / inception.cluster.levels[0].used_bandwidth


class Slowness(NamedTuple):
    """A network's speed beside VGG16's on a Titan X, published by others, and in our profiles.

    ``config`` is the plan if the network were as slow as in the benchmark, ``over_bsp`` that plan's
    speedup over data parallelism (simulated).
    """

    model: str
    published: float
    ours: float
    config: str
    over_bsp: float

    @property
    def factor(self) -> float:
        """How many times too fast our profile has the network beside VGG16."""
        return self.ours / self.published

    def __str__(self) -> str:
        return (
            f"VGG16 / {self.model}: {self.published:.2f} in cnn-benchmarks, {self.ours:.2f} here; "
            f"were it {self.factor:.2f} times as slow: {self.config}, {self.over_bsp:.2f} over BSP "
            "(simulated)"
        )


def beside_benchmark(one: Prediction, vgg16: Prediction) -> Slowness:
    """Return how a network compares with VGG16, and what became of it at the benchmark's speed."""
    model = one.setting.model
    times = network_times()
    published = times["vgg16", TITAN_X.name].seconds / times[model, TITAN_X.name].seconds
    ours = vgg16.compute_s / one.compute_s
    profile = stretched(one.profile, ours / published)
    chosen = plan(profile, one.cluster)
    all_workers = speeds.data_parallel(profile, one.setting.workers)
    bsp_s, ours_s = (
        speeds.simulated_seconds(profile, each, one.cluster) for each in (all_workers, chosen)
    )
    return Slowness(model, published, ours, chosen.config, bsp_s / ours_s)
