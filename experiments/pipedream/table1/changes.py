"""Rows of Table 1 with one thing changed at a time: which change turns which miss (simulated)."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from experiments import study
from experiments.pipedream import cause_names as names
from experiments.pipedream.table1.calibration import calibrated
from experiments.pipedream.table1.row import BSP, PIPEDREAM, Row
from experiments.pipedream.table1.rows import CALIBRATED_ON, S2VT, TABLE1, Setting
from experiments.pipedream.table1.speeds import twice_in_flight
from experiments.study.published_times import as_published, network_times

INSTEAD = {
    names.NOMINAL: "the printed bandwidth",
    names.TOO_FEW_IN_FLIGHT: "twice as many minibatches in flight",
    names.PLAN: "the paper's configuration, cut as well as can be",
    names.OWN_BANDWIDTH: "fitted on the row's own BSP speedup",
    names.GUESSED_LAYERS: "fitted on VGG16's row alone",
    names.ACTIVATIONS: "no larger than Table 1's 95 % leaves room for",
    names.TIMES: "the network's seconds as others published them",
}
"""What is done instead, by cause."""


def changes(row: Row, files: str = "") -> Iterator[tuple[str, Row]]:
    """Yield a row with each change that can be made to it, by its cause.

    ``files`` as for :func:`.calibration.profile_of`.
    """
    kept, planned, setting = row.simulated, replace(row, given=None, runs={}), row.setting
    yield names.NOMINAL, row.nominal
    yield names.TOO_FEW_IN_FLIGHT, replace(kept, method=twice_in_flight)
    if setting in TABLE1:
        yield names.PLAN, replace(kept, given=row.paper_plan)
        yield names.OWN_BANDWIDTH, replace(planned, cluster=calibrated(setting, files, (setting,)))
    known, *others = CALIBRATED_ON[setting.cluster]
    if known != setting and S2VT in others:
        yield names.GUESSED_LAYERS, replace(planned, cluster=calibrated(setting, files, (known,)))
    if setting == S2VT and len(row.plan.stages) > 1:
        # 5 % of what data parallelism sends is all that the printed 95 % leaves.
        part = 0.05 * kept.sent(BSP).total / kept.sent(PIPEDREAM).activations
        fewer = study.with_costs(row.profile, output_bytes=lambda layer: layer.output_bytes * part)
        yield names.ACTIVATIONS, replace(planned, profile=fewer)
    device = row.cluster.device
    if (setting.model, device.name) in network_times():
        yield (
            names.TIMES,
            replace(planned, profile=as_published(row.profile, setting.model, device)),
        )


@cache
def over_bsp_otherwise(setting: Setting) -> dict[str, float]:
    """Return a row's speedup over data parallelism with each change, by its cause."""
    return {cause: row.over_bsp for cause, row in changes(Row.of(setting))}
