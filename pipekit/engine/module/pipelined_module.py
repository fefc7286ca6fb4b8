"""A pipelined module, for people with a training loop of their own (torchgpipe, section 3)."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import chain, product
from numbers import Integral
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from pipekit.choices import require_choice
from pipekit.devices import CPU, resolve_for_workers
from pipekit.engine import arguments
from pipekit.engine.batches import part_sizes, split
from pipekit.engine.calls import refusing_fields
from pipekit.engine.execution.passes import PassConfig
from pipekit.engine.module.backward_order import link
from pipekit.engine.module.minibatch import Minibatch, ModuleRuntime, StepsByPass
from pipekit.engine.observers.record import as_trace
from pipekit.engine.options import Watch, require_timeout
from pipekit.engine.transports.threads import ThreadWorker
from pipekit.host.user_frames import hiding_frames
from pipekit.layers import skips
from pipekit.layers.batch_norm import convert_batch_norm, forget_batch
from pipekit.layers.module_state import twin
from pipekit.layers.pass_state import warn_of_modes
from pipekit.partition.checks import (
    require_balance,
    require_data,
    require_ties_on_one_device,
    warn_of_mixed_rows,
)
from pipekit.partition.partition import (
    Tie,
    cut,
    find_ties,
    partition,
    sequence_of,
    tie_ends,
)
from pipekit.partition.probe import probe
from pipekit.plans import Recompute
from pipekit.schedules import gpipe, lower
from pipekit.schedules.lowering.lower import Skips
from pipekit.traces import Trace
from pipekit.trees import Tree, differentiable, leaves, refill, tree_map

COMPONENTS = ("order", "streams", "portals")
"""What :class:`PipelinedModule` can do without (torchgpipe, Table 1)."""


class PipelinedModule(nn.Module):
    """A sequence of layers that computes as before, cut into stages and microbatches.

    ::

        model = PipelinedModule(sequential, [2, 3], chunks=8)
        loss = criterion(model(x), y.to(model.devices[-1]))
        loss.backward()
        optimizer.step()

    Every stage has a worker of its own, also on a CPU, and runs the engine's passes in GPipe's
    order; autograd's graph enforces that of the backwards (``backward_order.py``).  Hooks and
    gradients come to each parameter once a backward, so that ``DistributedDataParallel`` may wrap
    the module.  Gradients cannot be differentiated again, which is refused.

    Args:
        sequential: the layers, an ``nn.Sequential`` or a list; they are shared and not copied, and
            moved to the devices.
        balance: how many layers each stage gets.
        chunks: microbatches of a minibatch, as even as can be; of one with fewer rows, a microbatch
            a row.
        devices: one for each stage; by default the GPUs in turn, or the CPU.
        checkpoint: which microbatches keep only their inputs and are computed again: "always",
            "except_last" or "never"; none in evaluation (torchgpipe, section 2.1).
        deferred_batch_norm: update batch norm's running averages once a minibatch
            (:class:`pipekit.layers.batch_norm.DeferredBatchNorm`); layers are converted in place.
        without: any of "order" (of backwards), "streams" (copies beside the computing on GPUs) and
            "portals" (skip connections straight to their stage), to see what they are good for.
        watch: what is recorded of each minibatch, for :attr:`trace` and
            :func:`pipekit.measure_memory`, and who watches the stages' workers; by default nothing.
        timeout: seconds after which a forward or backward fails in which no worker gets further;
            None: never.  After 30 s a message says which worker waits for what.

    Attributes:
        balance: layers of each stage.
        devices: of each stage; targets belong on the last one.

    Raises:
        TypeError: ``sequential`` is neither an ``nn.Sequential`` nor a list of modules.
        ValueError: an argument does not fit the others; the message says what to change.
    """

    @refusing_fields
    def __init__(
        self,
        sequential: nn.Sequential | Sequence[nn.Module],
        balance: Sequence[int],
        *,
        chunks: int,
        devices: Sequence[torch.device | str] | None = None,
        checkpoint: Recompute = "except_last",
        deferred_batch_norm: bool = False,
        without: Collection[str] = (),
        watch: Watch = Watch(trace=False),
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        sequential = sequence_of(sequential)
        require_data(sequential)
        skips.require_matched(list(sequential))
        if isinstance(balance, str) or not hasattr(balance, "__len__"):
            raise ValueError(f"balance must be a list, as [2, 3], not {balance!r}")
        require_balance(list(balance), sequential, len(balance))
        require_choice("checkpoint", checkpoint, get_args(Recompute))
        if not isinstance(chunks, (int, Integral)) or chunks < 1:
            raise ValueError(f"chunks must be a whole number from 1, not {chunks!r}")
        for component in without:
            require_choice("without", component, COMPONENTS)
        self.balance, self.chunks, self.checkpoint = list(balance), chunks, checkpoint
        self.devices = resolve_for_workers(devices, len(balance))
        require_ties_on_one_device(cut(sequential, self.balance), self.devices)
        arguments.require_watchers(watch.observers, "threads")
        if watch.progress or watch.outputs:
            raise ValueError(
                "a PipelinedModule has neither a bar nor kept outputs: leave progress and outputs "
                "out of watch"
            )
        require_timeout(timeout)
        self._timeout = timeout
        self._without, self._watch = frozenset(without), watch
        if deferred_batch_norm:
            convert_batch_norm(sequential)
        for name, layer in sequential._modules.items():  # children() leaves out second uses
            self.add_module(name, layer)
        self._assemble()

    def _assemble(self) -> None:
        """Make of the layers and the arguments what is not pickled with them."""
        self._assembled = self._held()
        run = nn.Sequential(OrderedDict(self._modules.items()))  # type: ignore[arg-type]
        if "portals" in self._without:
            run = skips.inlined(run)
        self._skips = skips.between(skips.links(run), self.balance)
        layers = cut(run, self.balance)
        # In tuples, so that the layers have one name only.
        self._stages = tuple(_separated(layers))
        self._twins = [
            pair
            for stage, own in zip(self._stages, layers, strict=True)
            for pair in zip(stage.modules(), own.modules(), strict=True)
            if stage is not own
        ]
        for stage, device in zip(self._stages, self.devices, strict=True):
            stage.to(device)
        self._runtime = ModuleRuntime(
            workers=[
                ThreadWorker(device, copy_streams="streams" not in self._without)
                for device in self.devices
            ],
            watch=self._watch,
            timeout=self._timeout,
        )
        self._configs: dict[bool, list[PassConfig]] = {}  # in training, and in evaluation
        self._last: Minibatch | None = None

    def _held(self) -> list[tuple[nn.Module, type]]:
        """Return all modules in it; without itself, since threads live as long as it does."""
        return [(each, type(each)) for each in self.modules() if each is not self]

    def __getstate__(self) -> dict[str, Any]:
        made = {"_assembled", "_skips", "_stages", "_twins", "_runtime", "_configs", "_last"}
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._assemble()

    @hiding_frames
    @_disable_dynamo  # torch.compile would trace the engine for half a minute
    def forward(self, x: Tree) -> Tree:
        """Return what the sequence returns for ``x``; on the last device.

        Args:
            x: [rows, ...], a tensor or a structure of tensors.

        Raises:
            ValueError: there are no rows, or the tensors differ in them.
            RuntimeError: the call is within a transform of ``torch.func``.
            Stalled: no worker has got any further for too long.
            Exception: the first that a layer raised, once all workers have ended.
        """
        if torch._C._functorch.maybe_current_level() is not None:
            raise RuntimeError(
                "torch.func's transforms do not reach the threads in which layers run: use "
                "torch.autograd, or the layers themselves, nn.Sequential(*module)"
            )
        rows = _rows(x)
        inputs = split(tree_map(Tensor.detach, x), part_sizes(rows, min(self.chunks, rows)))
        if self._assembled != self._held():
            self._assemble()  # somebody has put a module in the place of another
        for copied, original in self._twins:  # with hooks, weights and flags as they are now
            own = {"_modules": copied._modules, "_parameters": dict(original._parameters)}
            vars(copied).update(vars(original) | own)
        if self.training not in self._configs:
            self._configs[self.training] = self._probe(inputs)
        given = differentiable(x)
        parameters = list(chain.from_iterable(stage.parameters() for stage in self._stages))
        asked = [*given, *parameters]
        keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in asked)
        ties = find_ties(self._stages)  # of what is trained now
        configs = self._configs_now(keeps and any(tensor.requires_grad for tensor in given), ties)
        skips = tuple((skip.source, skip.destination) for skip in self._skips)
        steps = _steps(len(self.balance), len(inputs), skips, tuple(tie_ends(ties)))
        minibatch = Minibatch(self._runtime, configs, steps, inputs, keeps)
        # In clock cycles: by their distance from the first (torchgpipe, Algorithm 1).
        places = product(range(len(self.balance)), range(len(inputs)))
        passes = sorted(places, key=sum)
        try:
            output = minibatch.forward(passes)
        except BaseException:
            forget_batch(self)
            raise
        if self._watch.trace or self._watch.memory:
            self._last = minibatch
        if not keeps:
            return output
        calls = minibatch.begin, minibatch.order.append, minibatch.differentiate
        in_order = "order" not in self._without
        return refill(output, link(*calls, asked, leaves(output), passes, in_order))

    @property
    def trace(self) -> Trace:
        """What was done for the last minibatch, measured; its gradients until the backward ends.

        Raises:
            RuntimeError: nothing was recorded.
        """
        if self._last is None:
            raise RuntimeError("no minibatch was recorded: use PipelinedModule(..., watch=Watch())")
        return as_trace(self._last.records, "PipelinedModule")

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> nn.Module:
        return list(self)[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return (layer for layer in self._modules.values() if layer is not None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PipelinedModule":
        """Convert all tensors, as each method and a parent's does; TypeError: it moves some."""
        for device in self.devices:
            if fn(torch.empty(0, device=device)).device != device:
                raise TypeError(
                    "the stages are on devices of their own: pass devices=[...] instead"
                )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _probe(self, inputs: Sequence[Tree]) -> list[PassConfig]:
        """Return how each stage's passes are run, from a batch's microbatches."""
        warn_of_modes()
        layers = nn.Sequential(*(layer for stage in self._stages for layer in stage))
        pairs = zip(self._stages, self.devices, strict=True)
        devices = [device for stage, device in pairs for _ in stage]
        tried = probe(layers, inputs[0], devices=devices, training=self.training)
        if self.training and len(inputs) > 1:
            evaluate = partial(probe, layers, devices=devices, training=False)
            warn_of_mixed_rows(inputs[0], inputs[1], evaluate)
        parts = partition(layers, self.balance, tried, self._skips).stages
        own = zip(parts, self._stages, strict=True)
        return [PassConfig(part=replace(part, module=stage)) for part, stage in own]

    def _configs_now(self, differentiates_batch: bool, ties: Sequence[Tie]) -> list[PassConfig]:
        """Return the same for one minibatch: with this thread's autocast, a seed, and ties."""
        seed = cache(lambda: int(torch.randint(2**31, (), device=CPU)))  # drawn if it is needed
        return [
            replace(
                config,
                part=config.part.tied(ties),
                seed=seed,
                differentiates_batch=differentiates_batch,
                recompute=self.checkpoint if self.training else "never",
                autocast=torch.get_autocast_dtype(device.type)
                if torch.is_autocast_enabled(device.type)
                else None,
            )
            for config, device in zip(self._configs[self.training], self.devices, strict=True)
        ]


@lru_cache
def _steps(stages: int, microbatches: int, skips: Skips, ties: Skips) -> StepsByPass:
    lowered = lower(gpipe(stages, microbatches).take(1), skips, ties)
    return {step.task[:3]: step for steps in lowered for step in steps.head}


def _rows(x: Tree) -> int:
    counts = {len(tensor) if tensor.dim() else 0 for tensor in leaves(x)}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(
            f"all input tensors must have the same first dimension, at least one row; here they "
            f"are {[tuple(tensor.shape) for tensor in leaves(x)]}"
        )
    return counts.pop()


def _separated(stages: Sequence[nn.Sequential]) -> Iterator[nn.Sequential]:
    """Yield stages; where they share a module, the later one gets a copy with the same tensors."""
    known: set[nn.Module] = set()
    for stage in stages:
        own = {each for layer in stage for each in layer.modules()}
        yield stage if known.isdisjoint(own) else twin(stage, stage.parameters())
        known |= own
