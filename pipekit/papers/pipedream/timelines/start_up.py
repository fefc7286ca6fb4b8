"""Figures 2, 3 and 8 and 1F1B-RR: who waits, and what the tables promise (2.2, 3.1, 3.3)."""

import random
from collections.abc import Mapping, Sequence
from statistics import median

from pipekit.clusters import Cluster, flat
from pipekit.emulation import emulate
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.steady_state import replica_vectors, utilisation
from pipekit.papers.pipedream.timelines.tables import (
    alternates,
    backward_follows_forward,
    routed_round_robin,
)
from pipekit.papers.timelines import EQUAL_SLOTS, ThreeWays, most_active, run_three_ways, starts
from pipekit.plans import Plan
from pipekit.profiling import LayerProfile, Profile
from pipekit.schedules import Op, Schedule, check, model_parallel, pipedream
from pipekit.simulation import simulate
from pipekit.traces import Trace

STRAIGHT = [1, 1, 1, 1]
"""The replicas of four stages that have a machine each, as in Figures 3, 4 and 8."""

EMULATIONS = 8
"""Of what is judged by how busy emulated machines are; the median counts."""


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
    """Return Figure 2: four machines that sum their gradients for two passes of ``pass_s``."""
    layers, size, machines = 4, 30e6, 4
    model = Profile.uniform(layers, pass_s / layers, pass_s / layers, parameter_bytes=size)
    links = flat(machines, 2 * (machines - 1) / machines * layers * size / (2 * pass_s))
    plan = Plan.by_hand([layers], replicas=[machines])
    warm_up()
    return run_three_ways(pipedream([machines]).take(12), model, plan, links, EQUAL_SLOTS)


def warm_up() -> None:
    """Emulate a sum of gradients: the first makes torch load what it needs, for half a second."""
    emulate(pipedream([2]).take(2), one_layer_stages([(0, 0)], parameter_bytes=4))


def equal_slots(schedule: Schedule, profile: Profile, cluster: Cluster | None = None) -> ThreeWays:
    """Return a schedule three ways; in the table a forward and a backward take one slot each."""
    return run_three_ways(schedule, profile, cluster=cluster, slots=EQUAL_SLOTS)


def figure3_finding(slots: Trace) -> Finding:
    """Return whether model parallelism in equal slots is as Figure 3 draws it."""
    drawn = {("FORWARD", s, k): 8 * k + s for s in range(4) for k in range(3)}
    drawn |= {("BACKWARD", s, k): 8 * k + 7 - s for s in range(4) for k in range(3)}
    same = starts(slots) == drawn and 1 - slots.bubble == 1 / 4
    return Finding.exact("pipedream-fig3-model-parallel-timeline", same, figure="figure3.svg")


def underuse_finding(figure3: ThreeWays, seed: int) -> Finding:
    """Return how many machines of model parallelism compute at once, on random stages too."""
    draw = random.Random(seed)
    traces = [figure3.simulated, figure3.emulated]
    for stages in range(2, 10):
        times = [(draw.uniform(1, 5), draw.uniform(1, 9)) for _ in range(stages)]
        traces.append(simulate(model_parallel(stages).take(4), one_layer_stages(times)))
    note = "also in the emulated run, and on 2 to 9 stages of random lengths"
    return Finding.exact("pipedream-intro-mp-underuse", max(map(most_active, traces)), note)


def figure8_finding(slots: Trace) -> Finding:
    """Return whether PipeDream in equal slots starts up as Figure 8 and the text say."""
    begins = {key: slot + 1 for key, slot in starts(slots).items()}  # the paper counts from 1
    first_backward = [begins["BACKWARD", stage, 0] for stage in range(4)]
    fifth_forward = [begins["FORWARD", stage, 4] for stage in range(4)]
    same = first_backward == [8, 7, 6, 5] and fifth_forward == [9, 10, 11, 12]
    note = "start-up as in the text: four minibatches go through to the output stage"
    return Finding.exact("pipedream-fig8-timeline", same, note, "figure8.svg")


def steady_findings(slots: Trace, minibatches: int, pass_s: float) -> list[Finding]:
    """Return how 1F1B starts, and how busy four equal stages of passes of ``pass_s`` are."""
    table = pipedream(4).take(minibatches)
    equal = one_layer_stages([(pass_s, pass_s)] * 4)
    in_slots = 100 * utilisation(Trace.from_schedule(table, EQUAL_SLOTS), STRAIGHT)
    runs = [100 * utilisation(emulate(table, equal).trace, STRAIGHT) for _ in range(EMULATIONS)]
    longer_backward = 100 * utilisation(Trace.from_schedule(table), STRAIGHT)  # of two slots
    begins = starts(slots)
    admitted = [task.op for task in table.workers[0]].index(Op.BACKWARD)
    gap = begins["BACKWARD", 3, 0] - begins["FORWARD", 3, 0] - 1
    emulated = (
        f"the second is emulated: passes of {1e3 * pass_s:g} ms; the rest is the engine's own time"
    )
    return [
        Finding.exact("pipedream-startup-admits-noam", admitted),
        Finding.exact("pipedream-1f1b-output-stage-first-backward", gap),
        Finding.emulated(
            "pipedream-1f1b-no-idle-balanced", [in_slots, median(runs)], emulated
        ).over([in_slots, busy] for busy in runs),
        Finding.exact("pipedream-1f1b-unequal-fb", longer_backward),
    ]


def replicated_tables(minibatches: int) -> dict[tuple[int, ...], Schedule]:
    """Return 1F1B-RR by replicas: all ways to share 8 machines among 4 stages, and two more."""
    vectors = [*replica_vectors(8, 4), [2, 1, 1], STRAIGHT]
    return {tuple(replicas): pipedream(replicas).take(minibatches) for replicas in vectors}


def round_robin_findings(tables: Mapping[tuple[int, ...], Schedule]) -> list[Finding]:
    """Return what 1F1B-RR promises whatever the replicas; see :func:`replicated_tables`."""
    in_flight = {replicas: check(table).peak_in_flight for replicas, table in tables.items()}
    capped = all(max(in_flight[r][: r[0]]) <= -(-sum(r) // r[0]) for r in tables)
    straight = in_flight[1, 1, 1, 1] == (4, 3, 2, 1)
    vectors = f"{len(tables)} replica vectors of up to 8 machines"
    alternating, routed, following = (
        all(map(holds, tables.values()))
        for holds in (alternates, routed_round_robin, backward_follows_forward)
    )
    return [
        Finding.exact("pipedream-1f1b-alternation", alternating),
        Finding.exact("pipedream-roundrobin-routing", routed),
        Finding.exact("pipedream-roundrobin-same-replica", following),
        Finding.exact("pipedream-inflight-cap", capped and straight, vectors),
    ]
