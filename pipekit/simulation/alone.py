"""Which task runs when, where no two messages meet on a link: every task as soon as it can.

Then a message takes as long as its connection says, and the clock of all replays gives what
:mod:`pipekit.simulation.events` gives, sooner: connections are workers with messages to carry.
Whether messages have met is seen afterwards, from when each was under way.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from pipekit.clusters import Cluster
from pipekit.clusters.traffic import Path, Paths
from pipekit.schedules import Op, Schedule
from pipekit.schedules.clock import Need, Walk
from pipekit.schedules.ops import PLACES
from pipekit.simulation.costs import StageCosts, sums_between_workers
from pipekit.simulation.loads import Activities, Loads, Numbers, Seconds, Times
from pipekit.units import require_amount


@dataclass(frozen=True)
class Host:
    """What workers of one host take beside their profiled passes, in seconds measured there.

    Threads and processes have no links between them: a worker itself lays what it sends where the
    other one finds it, or copies it from there, and computes nothing meanwhile.

    Attributes:
        pass_s: of each pass more than in a loop of one thread: it finds caches colder, since the
            worker has waited, run the engine's own code, and perhaps come to another core.
        task_s: of the engine, around each task.
        batch_s: to read a batch, on the first stage and on the last.
        send_s: to hand a message to another worker,
        send_byte_s: and for each of its bytes.
        receive_s: to take a message,
        receive_byte_s: and for each of its bytes.
        wake_s: until a worker goes on that has waited for a message.

    Raises:
        ValueError: a number is negative or not finite.
    """

    pass_s: float = 0.0
    task_s: float = 0.0
    batch_s: float = 0.0
    send_s: float = 0.0
    send_byte_s: float = 0.0
    receive_s: float = 0.0
    receive_byte_s: float = 0.0
    wake_s: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            require_amount(f"a host's {item.name}", getattr(self, item.name))


def run(
    schedule: Schedule, costs: Sequence[StageCosts], load: Loads, cluster: Cluster | None = None
) -> Times | None:
    """Return when everything happens, or None if messages meet on a link and share it."""
    activities = Activities(schedule, costs, load)
    messages = activities.messages
    receivers, lines = messages.receiver.tolist(), list[list[int]]()
    if cluster is None:
        numbers, latency = messages.sender, np.zeros(len(receivers))
    else:
        # Messages from one worker to another are on one connection, and follow one another there.
        paths, line = _connections(cluster, messages.source, messages.destination)
        rates = [(path.flow, path.alone, path.latency_s) for path in paths]
        flow, alone, latency = np.array(rates, dtype=float).reshape(-1, 3).T[:, line]
        senders = messages.sender.tolist()
        here = activities.add(flow * messages.size / alone, [((n, 0.0),) for n in senders])
        numbers = np.arange(here.start, here.stop)
        lines = [numbers[line == each].tolist() for each in range(len(paths))]
    for number, receiver, late in zip(numbers.tolist(), receivers, latency.tolist(), strict=True):
        activities.needs[receiver] += ((number, late),)
    clock = Walk([*activities.lists, *lines], activities.seconds, activities.needs).run()
    ends = np.array(clock.ends)
    came, leaves = ends[numbers], ends[messages.sender]
    left = leaves if cluster is None else np.array(clock.starts)[numbers]
    if cluster is not None and _meet(paths, line, left, came):
        return None
    return activities.times(clock.starts, clock.ends, activities.transfers(left, came, leaves))


def run_on_host(schedule: Schedule, costs: Sequence[StageCosts], load: Loads, host: Host) -> Times:
    """Return when everything happens where all workers share one host and carry their messages."""
    if sums_between_workers(costs):
        raise ValueError(
            "the cost of sums of gradients between workers on one host has not been measured: "
            "leave host out, or simulate without replicas and ties"
        )
    graph = schedule.dependencies
    task = graph.columns
    is_pass = task.whose(lambda op: op.is_pass)
    load = load._replace(seconds=load.seconds + host.pass_s * is_pass)
    activities = Activities(schedule, costs, load)
    messages = activities.messages
    handing = activities.add(host.send_s + host.send_byte_s * messages.size)
    # Before each task a worker takes its messages, and reads a batch.
    taking = np.full(len(graph.tasks), host.task_s)
    np.add.at(taking, messages.receiver, host.receive_s + host.receive_byte_s * messages.size)
    at_ends = (task.stage == 0) | (task.stage == len(costs) - 1)
    begins = np.isin(task.microbatch, [batch[0] for batch in schedule.batches])
    taking[(task.op == PLACES[Op.FORWARD]) & at_ends & begins] += host.batch_s
    needs: list[Need] = [()] * len(taking)
    after: list[list[int]] = [[] for _ in graph.tasks]
    for message, sender, receiver in zip(
        handing, messages.sender.tolist(), messages.receiver.tolist(), strict=True
    ):
        needs[receiver] += ((message, 0.0),)
        after[sender].append(message)
    activities.put(np.array(activities.add(taking, needs)))
    lists = [
        [each for n in own for each in (n, *(after[n] if n < len(after) else ()))]
        for own in activities.lists
    ]
    clock = Walk(lists, activities.seconds, activities.needs, wake=host.wake_s).run()
    when = slice(handing.start, handing.stop)
    left, came = np.array(clock.starts[when]), np.array(clock.ends[when])
    return activities.times(clock.starts, clock.ends, activities.transfers(left, came, left))


def share_links(transfers: pd.DataFrame, cluster: Cluster) -> bool:
    """Return whether messages of a trace shared a link of the cluster."""
    ends = (transfers[name].to_numpy(np.int64) for name in ("source", "destination"))
    times = (transfers[name].to_numpy(np.float64) for name in ("start_s", "end_s"))
    return _meet(*_connections(cluster, *ends), *times)


def _connections(
    cluster: Cluster, source: Numbers, destination: Numbers
) -> tuple[list[Path], Numbers]:
    workers = 1 + int(destination.max(initial=0))
    ends_of, line = np.unique(source * workers + destination, return_inverse=True)
    known = Paths(cluster)
    return [known.message(*divmod(int(ends), workers)) for ends in ends_of], line


def _meet(paths: Sequence[Path], line: Numbers, left: Seconds, came: Seconds) -> bool:
    users = defaultdict(list)
    for number, path in enumerate(paths):
        for port, _ in path.ports:
            users[port].append(number)
    for lines in users.values():
        here = np.flatnonzero(np.isin(line, lines) & (came > left))
        here = here[np.argsort(left[here])]
        before, after = here[:-1], here[1:]
        # One that sets out as another ends may be followed before that does, and counts as well.
        if np.any((line[before] != line[after]) & (left[after] <= came[before])):
            return True
    return False
