"""Figures 2, 3 and 8 and 1F1B-RR: who waits, and what the tables promise (2.2, 3.1, 3.3)."""

import random
from collections.abc import Mapping, Sequence

from pipekit.clusters import Cluster, flat
from pipekit.emulation import emulate
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.replicas import replica_vectors
from pipekit.papers.pipedream.steady_state import utilisation
from pipekit.papers.pipedream.timelines.tables import (
    alternates,
    backward_follows_forward,
    routed_round_robin,
)
from pipekit.papers.three_ways import ThreeWays, run_three_ways
from pipekit.papers.timelines import EQUAL_SLOTS, most_active, starts
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, Schedule, check, model_parallel, pipedream
from pipekit.simulation import simulate
from pipekit.traces import Trace

STRAIGHT = [1, 1, 1, 1]
"""The replicas of four stages that have a machine each, as in Figures 3, 4 and 8."""


def one_layer_stages(
    stage_s: Sequence[tuple[float, float]], output_bytes: float = 0.0, parameter_bytes: float = 0.0
) -> Profile:
    """Return a profile with one layer a stage, of so many seconds forward and backward."""
    layers = tuple(
        LayerProfile(f"stage {number}", forward, backward, output_bytes, parameter_bytes)
        for number, (forward, backward) in enumerate(stage_s)
    )
    return Profile(layers, input_bytes=output_bytes, provenance={"label": "exact"})


def data_parallelism(pass_s: float) -> ThreeWays:
    """Return Figure 2: four machines that sum their gradients, as long as both passes take.

    Args:
        pass_s: seconds of a forward of the whole model, and of a backward.
    """
    layers, size, machines = 4, 30e6, 4
    model = Profile.uniform(layers, pass_s / layers, pass_s / layers, parameter_bytes=size)
    links = flat(machines, 2 * (machines - 1) / machines * layers * size / (2 * pass_s))
    plan = Plan.by_hand([layers], replicas=[machines])
    warm_up()
    return run_three_ways(pipedream([machines], 12), model, plan, links, EQUAL_SLOTS)


def warm_up() -> None:
    """Emulate a sum of gradients: the first makes torch load what it needs, for half a second."""
    emulate(pipedream([2], 2), one_layer_stages([(0, 0)], parameter_bytes=4))


def equal_slots(schedule: Schedule, profile: Profile, cluster: Cluster | None = None) -> ThreeWays:
    """Return a schedule three ways; in the table a forward and a backward take one slot each."""
    return run_three_ways(schedule, profile, cluster=cluster, slots=EQUAL_SLOTS)


def figure3_finding(slots: Trace) -> Finding:
    """Return whether model parallelism in equal slots is as Figure 3 draws it."""
    drawn = {("FORWARD", s, k): 8 * k + s for s in range(4) for k in range(3)}
    drawn |= {("BACKWARD", s, k): 8 * k + 7 - s for s in range(4) for k in range(3)}
    return Finding(
        "pipedream-fig3-model-parallel-timeline",
        starts(slots) == drawn and 1 - slots.bubble == 1 / 4,
        "exact",
        figure="figure3.svg",
    )


def underuse_finding(figure3: ThreeWays, seed: int) -> Finding:
    """Return how many machines of model parallelism compute at once, on random stages too.

    Args:
        figure3: model parallelism three ways.
        seed: of the random stages' seconds.
    """
    draw = random.Random(seed)
    traces = [figure3.simulated, figure3.emulated]
    for stages in range(2, 10):
        times = [(draw.uniform(1, 5), draw.uniform(1, 9)) for _ in range(stages)]
        traces.append(simulate(model_parallel(stages, 4), one_layer_stages(times)))
    return Finding(
        "pipedream-intro-mp-underuse",
        max(map(most_active, traces)),
        "exact",
        "also in the emulated run, and on 2 to 9 stages of random lengths",
    )


def figure8_finding(slots: Trace) -> Finding:
    """Return whether PipeDream in equal slots starts up as Figure 8 and the text say."""
    begins = {key: slot + 1 for key, slot in starts(slots).items()}  # the paper counts from 1
    first_backward = [begins["BACKWARD", stage, 0] for stage in range(4)]
    fifth_forward = [begins["FORWARD", stage, 4] for stage in range(4)]
    return Finding(
        "pipedream-fig8-timeline",
        first_backward == [8, 7, 6, 5] and fifth_forward == [9, 10, 11, 12],
        "exact",
        "start-up as in the text: four minibatches go through to the output stage",
        "figure8.svg",
    )


def steady_findings(slots: Trace, minibatches: int, pass_s: float) -> list[Finding]:
    """Return how 1F1B starts, and how busy it keeps four equal stages, in a longer run.

    Args:
        slots: PipeDream in equal slots.
        minibatches: of the longer run.
        pass_s: seconds of either pass of a stage in the emulated run.
    """
    table = pipedream(4, minibatches)
    equal = one_layer_stages([(pass_s, pass_s)] * 4)
    busy = [
        100 * utilisation(trace, STRAIGHT)
        for trace in (Trace.from_schedule(table, EQUAL_SLOTS), emulate(table, equal).trace)
    ]
    longer_backward = Trace.from_schedule(table)  # a backward of two slots
    begins = starts(slots)
    admitted = [task.op for task in table.workers[0]].index(Op.BACKWARD)
    gap = begins["BACKWARD", 3, 0] - begins["FORWARD", 3, 0] - 1
    return [
        Finding("pipedream-startup-admits-noam", admitted, "exact"),
        Finding("pipedream-1f1b-output-stage-first-backward", gap, "exact"),
        Finding(
            "pipedream-1f1b-no-idle-balanced",
            busy,
            "exact",
            f"the second is emulated: passes of {1e3 * pass_s:g} ms; the rest is the engine's own "
            "time",
        ),
        Finding("pipedream-1f1b-unequal-fb", 100 * utilisation(longer_backward, STRAIGHT), "exact"),
    ]


def replicated_tables(minibatches: int) -> dict[tuple[int, ...], Schedule]:
    """Return 1F1B-RR by replicas: all ways to share 8 machines among 4 stages, and two more."""
    vectors = [*replica_vectors(8, 4), [2, 1, 1], STRAIGHT]
    return {tuple(replicas): pipedream(replicas, minibatches) for replicas in vectors}


def round_robin_findings(tables: Mapping[tuple[int, ...], Schedule]) -> list[Finding]:
    """Return what 1F1B-RR promises whatever the replicas; see :func:`replicated_tables`."""
    in_flight = {replicas: check(table).peak_in_flight for replicas, table in tables.items()}
    capped = all(max(in_flight[r][: r[0]]) <= -(-sum(r) // r[0]) for r in tables)
    return [
        Finding("pipedream-1f1b-alternation", all(map(alternates, tables.values())), "exact"),
        Finding(
            "pipedream-roundrobin-routing", all(map(routed_round_robin, tables.values())), "exact"
        ),
        Finding(
            "pipedream-roundrobin-same-replica",
            all(map(backward_follows_forward, tables.values())),
            "exact",
        ),
        Finding(
            "pipedream-inflight-cap",
            capped and in_flight[1, 1, 1, 1] == (4, 3, 2, 1),
            "exact",
            f"{len(tables)} replica vectors of up to 8 machines",
        ),
    ]
