"""The parts of a pipeline, put together from what a user passes, which is checked here."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from numbers import Integral

from torch import nn

from pipekit.devices import resolve_for_workers
from pipekit.engine import arguments, combinations
from pipekit.engine.assignment import Runner
from pipekit.engine.config import Loss
from pipekit.engine.execution.passes import PassConfig
from pipekit.engine.execution.stage import StageConfig
from pipekit.engine.options import Execution, Updates, require_callable, require_loss
from pipekit.engine.runs.batch_reader import BatchReader
from pipekit.engine.runs.model_stages import ModelStages
from pipekit.engine.updates.mitigated_weights import StageMitigation
from pipekit.engine.updates.optimizer_state import OrderedGroups
from pipekit.engine.updates.weight_versions import OptimizerFactory
from pipekit.layers import skips
from pipekit.layers.module_state import as_trained, copied
from pipekit.layers.sequence_chunks import require_chunkable
from pipekit.names import TRANSPORTS
from pipekit.partition.checks import require_balance, require_data, require_no_tensor_hooks
from pipekit.partition.partition import PartitionStage
from pipekit.plans import Plan
from pipekit.schedules import Op, Schedule
from pipekit.schedules.lowering.boundaries import PossibleStops, possible_stops


class Parts:
    """What a pipeline is made of, checked, and changed by no run but for its model.

    Arguments and errors are those of :class:`pipekit.Pipeline`.
    """

    def __init__(
        self,
        layers: nn.Sequential,
        schedule: Schedule,
        optimizer: OptimizerFactory,
        loss: Loss,
        balance: Sequence[int] | Plan | str,
        transport: str,
        seed: int | str | None,
        updates: Updates,
        execution: Execution,
    ) -> None:
        require_data(layers)
        skips.require_matched(list(layers))
        require_no_tensor_hooks(layers)
        TRANSPORTS.require(transport)
        if not (seed is None or seed == "torch" or isinstance(seed, Integral)):
            raise ValueError(f"seed must be a whole number, 'torch' or None, not {seed!r}")
        require_callable(optimizer=optimizer)
        require_loss(loss=loss)
        arguments.checked(schedule)
        if schedule.chunks > 1:
            require_chunkable(layers)
        recompute = execution.recompute
        if isinstance(balance, Plan):
            arguments.require_replicas(balance, schedule)
            recompute = recompute or [stage.recompute for stage in balance.stages]
            balance = balance.balance
        require_balance(balance, layers, schedule.stages)
        modes = arguments.resolve_recompute(recompute or "never", schedule.stages)
        fewer = execution.short_batches == "fewer"
        reader = BatchReader(layers, execution.inputs, fewer, execution.rows)
        # Workers need no inputs=, which may be a function that no other process can have.
        execution = replace(execution, recompute=modes, inputs=None)
        if execution.cluster is not None:
            execution.cluster.require_room(schedule.worker_count)
        devices = resolve_for_workers(execution.devices, schedule.worker_count)
        # Features, and those for which all stages update together.
        used = combinations.of_pipeline(schedule, updates, execution, seed, transport)
        combinations.require_compatible(used)
        joint = used & {combinations.CLIP, combinations.SCALE}
        for feature in joint:
            combinations.require_joint_updates(schedule, feature)
        late = _delays(schedule) if updates.rule else [0] * schedule.stages
        groups = updates.groups and OrderedGroups(updates.groups, layers)
        configs = []
        for index, mode in enumerate(modes):
            part = PartitionStage(index=index, module=nn.Sequential())  # before the model is cut
            passes = PassConfig(part=part, autocast=execution.autocast, recompute=mode)
            mitigation = None
            if updates.rule:
                about = index, schedule.stages, late[index], schedule.stashing
                mitigation = StageMitigation(updates.rule, *about)
            configs.append(
                StageConfig(
                    passes=passes,
                    optimizer=optimizer,
                    updates=updates,
                    groups=groups,
                    mitigation=mitigation,
                )
            )
        self.schedule, self.optimizer, self.loss, self.seed = schedule, optimizer, loss, seed
        self.updates, self.execution, self.transport = updates, execution, transport
        self.reader, self.devices, self.used, self.joint = reader, devices, used, joint
        self.delays = late
        trained = as_trained(copied(layers))
        self.runner: Runner = TRANSPORTS.load(transport)(devices)
        if not self.runner.can_end:  # its messages have no names: they come in an order
            arguments.require_no_hang(schedule)
        self.model = ModelStages(layers, trained, balance, configs)
        # Where a run without end may end; is it before each batch?  Updates may average several.
        self.stops = possible_stops(schedule) if schedule.period else PossibleStops()
        anywhere = 0 < len(self.stops.batches) == len(schedule.batch_stops)
        self.stops_anywhere = self.runner.can_end and anywhere


def _delays(schedule: Schedule) -> list[int]:
    """Return, for each stage, the most updates between a forward and its own update."""
    some = schedule.excerpt()
    found = [0] * some.stages
    for op, stage, microbatch, version in chain(*some.workers):
        if op is Op.FORWARD:
            late = some.update_of[stage][microbatch] - 1 - version
            found[stage] = max(found[stage], late)
    return found
