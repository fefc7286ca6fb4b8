"""Which task runs when where nobody shares a link: links cost nothing, or workers share one host.

Then the clock of all replays gives what :mod:`pipekit.simulation.events` gives, sooner.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from pipekit.schedules import Op, Schedule
from pipekit.schedules.clock import Need, Walk
from pipekit.schedules.ops import PLACES
from pipekit.simulation.costs import StageCosts, sums_between_workers
from pipekit.simulation.loads import Activities, Loads, Times
from pipekit.units import MOST


@dataclass(frozen=True)
class Host:
    """What workers of one host take beside their profiled passes, in seconds measured there.

    A worker itself lays what it sends where the other one finds it, or copies it from there, and
    computes nothing meanwhile.

    Attributes:
        pass_s: of each pass more than in a loop of one thread: caches are colder, since the worker
            has waited, run the engine's own code, and perhaps come to another core.
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
            value = getattr(self, item.name)
            if not 0 <= value <= MOST:
                raise ValueError(
                    f"a host's {item.name} must be 0 or a positive number of seconds up to "
                    f"{MOST:g}, not {value}"
                )


def run(schedule: Schedule, costs: Sequence[StageCosts], load: Loads) -> Times:
    """Return when everything happens where links cost nothing."""
    activities = Activities(schedule, costs, load)
    senders = activities.messages.sender
    for sender, receiver in zip(
        senders.tolist(), activities.messages.receiver.tolist(), strict=True
    ):
        activities.needs[receiver] += ((sender, 0.0),)
    clock = Walk(activities.lists, activities.seconds, activities.needs).run()
    left = np.array(clock.ends)[senders]
    return activities.times(clock.starts, clock.ends, activities.transfers(left, left, left))


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
