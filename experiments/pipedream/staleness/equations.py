"""PipeDream's update equations held against the engine's weights, to the bit (section 3.4)."""

from collections.abc import Mapping
from functools import cached_property, partial

import pandas as pd
import plotly.graph_objects as go
import torch

from experiments.pipedream.staleness.study import (
    Study,
    largest_relative_difference,
    stashing_delays,
)
from experiments.pipedream.staleness.versions import (
    METHODS,
    NAIVE,
    SGD,
    STAGES,
    STASHING,
    SYNCED,
    same_version_both_ways,
)
from experiments.recorded.findings import Finding
from experiments.study.differences import Tensors, bit_equal
from pipekit import oracle, plots

ORACLE = {
    SGD: "model_parallel",
    NAIVE: "pipedream_no_stashing",
    STASHING: "pipedream",
    SYNCED: "pipedream_vertical_sync",
}
"""What :mod:`pipekit.oracle` calls the methods."""

LATE = stashing_delays(STAGES)

EQUATIONS = (
    (SGD, "SGD", [0] * STAGES),
    (STASHING, "weight stashing", LATE),
    (STASHING, "the text: n steps late", [delay + 1 for delay in LATE]),
    (SYNCED, "vertical sync", [STAGES - 1] * STAGES),
)
"""Which method's weights are compared with which equation, and the delay of each stage in it."""


class Equations:
    """The engine's weights after every minibatch, beside those of the equations."""

    def __init__(self, single: Study, double: Study) -> None:
        self.single, self.double = single, double
        self._histories = {
            (name, study): study.engine_history(schedule)
            for name, schedule in METHODS.items()
            for study in (single, double)
        }

    @cached_property
    def table(self) -> pd.DataFrame:
        """The largest relative difference over all W(t), a row an equation and precision."""
        rows = []
        for study, dtype in ((self.single, "float32"), (self.double, "float64")):
            for name, equation, delays in EQUATIONS:
                engine, replayed = self._histories[name, study], study.replay(delays)
                row = {"engine": name, "replayed": equation, "dtype": dtype}
                difference = largest_relative_difference(engine, replayed)
                rows.append({**row, "‖Δw‖/‖w‖": difference})
        return pd.DataFrame(rows)

    @cached_property
    def from_oracle(self) -> dict[str, float]:
        """The largest relative difference from :mod:`pipekit.oracle` in float32, by method."""
        study = self.single
        found = {}
        for name, method in ORACLE.items():
            truth = oracle.train(
                study.model,
                study.batches,
                method=method,
                balance=study.balance,
                optimizer=partial(torch.optim.SGD, lr=study.lr),
                loss=study.loss,
            )
            history = self._histories[name, study]
            found[name] = largest_relative_difference(history, truth.weights)
        return found

    def findings(self) -> list[Finding]:
        """Return whether the engine's weights are those of the equations."""
        far = self.table.set_index(["replayed", "dtype"])["‖Δw‖/‖w‖"]
        stashing = [far["weight stashing", dtype] for dtype in ("float32", "float64")]
        by_text = far["the text: n steps late", "float64"]
        same = not any(self.from_oracle.values())
        fact = f"equal to the bit to pipekit.oracle in float32: {same}"
        told_apart = bool(max(stashing) == 0 and by_text > 1e-6)
        note = (
            f"the equation's replay is the engine's to the bit, the text's is {by_text:.3f} of "
            "the weights' norm away"
        )
        synced = max(far["vertical sync"])
        return [
            Finding.exact("pipedream-eq-sgd", max(far["SGD"]) == 0, fact),
            Finding.exact("pipedream-eq-stash-staleness", stashing, fact),
            Finding.exact("pipedream-eq-vsync-staleness", synced, fact),
            Finding.exact("pipedream-eq-staleness-text-vs-equation", told_apart, note),
        ]

    @cached_property
    def gradient_errors(self) -> Mapping[str, list[float]]:
        """How far the gradients that updates follow are from autograd's, in steady state (float64).

        With stashing at the mixed versions of the equation; without at the versions of the forward,
        and at those of the backward.
        """
        old = [lambda t, delay=delay: t - delay for delay in LATE]
        new = [lambda t: t] * STAGES
        study = self.double
        stashed, lost = (self._histories[name, study] for name in (STASHING, NAIVE))
        return {
            "with stashing, at the stashed weights": study.gradient_errors(stashed, old),
            "without, at the forward's weights": study.gradient_errors(lost, old),
            "without, at the backward's weights": study.gradient_errors(lost, new),
        }

    def gradient_frame(self) -> pd.DataFrame:
        """Return :attr:`gradient_errors` as rows: update, error, gradient."""
        return pd.DataFrame(
            {"update": update, "relative error of the gradient": error, "gradient": name}
            for name, errors in self.gradient_errors.items()
            for update, error in enumerate(errors, start=STAGES)
        )

    def gradient_figure(self) -> go.Figure:
        """Draw :meth:`gradient_frame`."""
        axes = "update", "relative error of the gradient", "gradient"
        title = "Without stashing an update follows no gradient"
        return plots.curves(self.gradient_frame(), *axes, title=title, label="measured")

    def gradient_finding(self) -> Finding:
        """Return the largest error with stashing and the smallest ones without."""
        kept, at_old, at_new = self.gradient_errors.values()
        errors = [max(kept), min(at_old), min(at_new)]
        note = "float64; the largest of all updates with stashing, the smallest of any without"
        claim = "pipedream-no-stash-invalid-gradient"
        return Finding.measured(claim, errors, note, "gradient_error.svg")

    def _stepped_from_latest(self, t: int) -> Tensors:
        """Return w(t) - lr * g(stashed weights of minibatch t), in float32."""
        study = self.single
        history = self._histories[STASHING, study]
        stashed = study.mixed(history, [t - delay for delay in LATE])
        return study.stepped(history[t], study.gradient(stashed, t))

    def update_findings(self) -> list[Finding]:
        """Return whether a stashed gradient updates the latest weights, to the bit."""
        history = self._histories[STASHING, self.single]
        latest = all(
            bit_equal(self._stepped_from_latest(t), history[t + 1]) for t in range(len(history) - 1)
        )
        bitwise = self.from_oracle[STASHING] == self.from_oracle[SYNCED] == 0
        same = same_version_both_ways() and bitwise
        every = "float32, every update: w(t+1) has the bits of w(t) - lr * g(stashed)"
        both = "in the tables, and in the engine's weights, which are the equation's to the bit"
        return [
            Finding.exact("pipedream-update-on-latest", latest, every),
            Finding.exact("pipedream-stash-same-version", same, both),
        ]
