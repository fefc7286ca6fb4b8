"""The planner beside every configuration, its cost model written out for one at a time (4).

The planner (:mod:`pipekit.planning.sweep`) computes with arrays; this is a second opinion on it.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import pandas as pd
import pytest

from experiments.pipedream_2bw.profiles import OPTIMIZER_STATES, gpt_profile
from pipekit.clusters import Cluster, Device, Level, two_bw_v100
from pipekit.planning import plan
from pipekit.planning.sweep import block_balance, sweep
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile

PROBLEMS = 12


class Problem(NamedTuple):
    """What a planner is asked; profiles are by rows of the microbatch, a batch has ``max_batch``.

    The optimizer keeps so many tensors of a parameter's size for each.
    """

    profiles: Mapping[int, Profile]
    cluster: Cluster
    max_batch: int
    optimizer_states: float = 2

    @property
    def asked(self) -> tuple[Mapping[int, Profile], Cluster]:
        return self.profiles, self.cluster

    @property
    def limits(self) -> dict[str, Any]:
        return {"max_batch": self.max_batch, "optimizer_states": self.optimizer_states}

    def fitting(self) -> pd.DataFrame:
        """Return all that section 4 searches and a worker's memory holds."""
        table = pd.DataFrame(self._every_configuration())
        return table[table["memory_bytes"] <= self.cluster.device.memory_bytes]

    def _every_configuration(self) -> Iterator[dict[str, Any]]:
        smallest = self.profiles[min(self.profiles)]
        for depth in range(1, min(self.cluster.workers, len(smallest)) + 1):
            balance = block_balance(smallest, depth)
            for width in range(1, self.cluster.workers // depth + 1):
                for rows, profile in self.profiles.items():
                    microbatches = self.max_batch // (width * rows)
                    for recompute in (False, True) if microbatches >= depth else ():
                        how = profile, balance, width, recompute
                        seconds = _seconds(*how, self.cluster, microbatches)
                        yield {
                            "width": width,
                            "depth": depth,
                            "microbatch_rows": rows,
                            "recompute": recompute,
                            "throughput": width * rows / seconds,
                            "memory_bytes": _bytes(*how, self.optimizer_states),
                        }


def _seconds(
    profile: Profile,
    balance: list[int],
    width: int,
    recompute: bool,
    cluster: Cluster,
    microbatches: int,
) -> float:
    """Return max over stages of max(compute + transfers, all-reduce / m)."""
    stops = list(accumulate(balance))
    passing = [
        _passing(cluster, width, stage, profile.boundary_bytes(stop))
        for stage, stop in enumerate(stops[:-1])
    ]
    slowest = 0.0
    for stage, (stop, length) in enumerate(zip(stops, balance, strict=True)):
        whole = profile.stage(stop - length, stop)
        busy = (1 + recompute) * whole.forward_s + whole.backward_s + whole.update_s / microbatches
        busy += passing[stage - 1] if stage else 0
        busy += passing[stage] if stage < len(passing) else 0
        reducing = 0.0
        if width > 1:
            level = cluster.level_between(stage * width, (stage + 1) * width - 1)
            reducing = 2 * (width - 1) / width * whole.parameter_bytes / level.used_bandwidth
        slowest = max(slowest, busy, reducing / microbatches)
    return slowest


def _passing(cluster: Cluster, width: int, stage: int, size: float) -> float:
    """Return the seconds in which every pipeline passes ``size`` bytes to its next stage."""
    busy: Counter[tuple[str, str, int]] = Counter()
    for replica in range(width):
        source = stage * width + replica
        level = cluster.level_between(source, source + width)
        for way, worker in (("out", source), ("in", source + width)):
            busy[level.name, way, cluster.member(worker, level)] += 1
    used = {level.name: level.used_bandwidth for level in cluster.levels}
    return max(count * size / used[name] for (name, _, _), count in busy.items())


def _bytes(
    profile: Profile, balance: list[int], width: int, recompute: bool, optimizer_states: float
) -> float:
    """Return the fullest worker's: versions, gradients, optimizer, buffers, activations."""
    stops, fullest = list(accumulate(balance)), 0.0
    for stage, (stop, length) in enumerate(zip(stops, balance, strict=True)):
        whole, in_flight = profile.stage(stop - length, stop), len(balance) - stage
        made = whole.saved_bytes + (0 if whole.saves_output else whole.output_bytes)
        # Parallel pipelines: of all stages but the last, two sums of gradients; there, one version.
        weights_and_sums = 2 + (2 if width > 1 and in_flight > 1 else 1)
        fullest = max(
            fullest,
            (weights_and_sums + optimizer_states) * whole.parameter_bytes
            + whole.buffer_bytes
            + in_flight * profile.boundary_bytes(stop - length)
            + (1 if recompute else in_flight) * made,
        )
    return fullest


def random_problem(generator: random.Random) -> Problem:
    """Return few random layers on two random servers, whose memory holds some configurations."""
    draw = generator.uniform
    layers = tuple(
        LayerProfile(f"layer {i}", draw(1, 5), draw(1, 9), draw(0, 9), draw(1, 9), draw(0, 9), True)
        for i in range(generator.randint(1, 5))
    )
    one = Profile(layers, input_bytes=draw(0, 5))
    links = (Level("inner", generator.randint(1, 3), draw(2, 9)), Level("outer", 2, draw(0.5, 4)))
    cluster = Cluster("random", Device("any", float("inf"), {}, float("inf")), links)
    unlimited = Problem({rows: one.scaled(rows) for rows in (1, 2, 4)}, cluster, 8)
    limit = unlimited.fitting()["memory_bytes"].min() * draw(1, 3)
    device = replace(cluster.device, memory_bytes=limit)
    return unlimited._replace(cluster=replace(cluster, device=device))


def on_one_server(batch: int) -> Problem:
    """Return the planning of the 2.2-billion GPT."""
    profiles = {2**k: gpt_profile("2.2B", 2**k) for k in range(7)}
    return Problem(profiles, two_bw_v100(1), batch, OPTIMIZER_STATES)


@pytest.fixture(scope="module")
def answers() -> list[tuple[Problem, pd.DataFrame, Plan]]:
    """Problems, all configurations that fit, and the planner's answers."""
    draw = random.Random(0)
    problems = [random_problem(draw) for _ in range(PROBLEMS)]
    problems += [on_one_server(batch) for batch in (64, 256)]
    return [
        (each, each.fitting(), plan(*each.asked, "parallel_pipelines", **each.limits))
        for each in problems
    ]


Answers = list[tuple[Problem, pd.DataFrame, Plan]]


def throughput(found: Plan) -> float:
    assert found.microbatch_rows is not None
    return found.replicas[0] * found.microbatch_rows / found.predicted_s


def test_a_plan_is_the_fastest_that_fits(answers: Answers) -> None:
    for problem, fitting, found in answers:
        assert throughput(found) == pytest.approx(fitting["throughput"].max(), rel=1e-9)
        table = sweep(*problem.asked, **problem.limits)
        columns = list(fitting)
        pd.testing.assert_frame_equal(
            *(
                each[columns].sort_values(columns[:4], ignore_index=True)
                for each in (table[table["fits"]], fitting)
            )
        )


def test_a_plan_is_within_memory_and_batch(answers: Answers) -> None:
    for problem, _, found in answers:
        w, b, m = found.replicas[0], found.microbatch_rows, found.microbatches
        assert found.memory_bytes <= problem.cluster.device.memory_bytes
        assert w * b * m <= problem.max_batch < w * b * (m + 1)
        assert m >= len(found.stages)


def test_microbatches_are_as_large_as_fit(answers: Answers) -> None:
    """None as fast, on as few workers, has larger ones."""
    for _, fitting, found in answers:
        rivals = fitting[
            (fitting["throughput"] >= throughput(found) * (1 - 1e-9))
            & (fitting["width"] * fitting["depth"] == found.workers)
            & (fitting["recompute"] == (found.stages[0].recompute == "always"))
        ]
        assert found.microbatch_rows == rivals["microbatch_rows"].max()


def test_stages_have_as_many_replicas(answers: Answers) -> None:
    assert all(len(set(found.replicas)) == 1 for _, _, found in answers)
