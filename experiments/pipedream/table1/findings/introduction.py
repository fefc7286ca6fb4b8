"""The findings of the abstract and section 1, of Table 1's runs."""

import pandas as pd

from experiments.pipedream.table1.findings.judge import (
    ALEXNET,
    EIGHT_B,
    INCEPTION_B,
    RESNET,
    S2VT,
    Judge,
    finding,
)
from experiments.pipedream.table1.rows import TABLE1
from experiments.recorded.findings import Finding

HEADLINES = INCEPTION_B, EIGHT_B, RESNET, ALEXNET, S2VT
"""The rows behind section 1's speedups."""


def findings(judge: Judge, calibrations: pd.DataFrame) -> list[Finding]:
    """Return the findings; ``calibrations`` is what :func:`..predictions.calibrations` returned."""
    runs = judge.runs
    excess = max(abs(one.excess) for found in runs.values() for one in (found.bsp, found.pipedream))
    saved = [max(runs[row].saved for row in TABLE1), excess]
    shown = [runs[row].over_bsp for row in HEADLINES]
    slowest = calibrations.loc[calibrations["BSP, nominal"].idxmin()]
    nominal = (
        f"{slowest['row']} at the nominal bandwidth, nothing fitted; "
        f"{slowest['BSP, effective']:.2f} with the one fitted on VGG16's BSP"
    )
    both = f"ResNet-50, AlexNet: {judge.borrowed}; S2VT: {judge.s2vt_note}"
    twin = "the throughput twin: VGG16 8B"
    alike, bars = "all bytes counted alike", "communication_bars.svg"
    models = len({row.model for row in runs})
    return [
        finding("abstract-comm-reduction-95", saved, alike, bars),
        finding("abstract-tta-5x", runs[EIGHT_B].over_bsp, twin, label=runs[EIGHT_B].label),
        finding("abstract-five-models-two-clusters", models, label="exact"),
        judge.turned(
            finding("intro-headline-speedups", shown, both, label=judge.weakest(*HEADLINES)),
            HEADLINES,
            lambda changed: [each.over_bsp for each in changed],
        ),
        finding(
            "intro-dp-slower-than-single",
            float(slowest["BSP, nominal"]),
            nominal,
            label="simulated",
        ),
    ]
