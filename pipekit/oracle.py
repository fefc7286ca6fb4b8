"""The papers' weight updates, carried out slowly: the judge of the engine.

One process, one thread, a list of all past weights, and the update equations.  Nothing here knows
schedules, workers or transports: a pipeline method is only the version of the weights that each
stage reads.  With n stages, stage s counted from 1, and W(t) the weights after t updates:

==========================  ===========================================  =======================
method                      the gradient of update t+1 is taken at       source
==========================  ===========================================  =======================
sequential                  W(t)                                         PipeDream 3.4, eq. 1
pipedream                   W_s(t-n+s) on stage s                        PipeDream 3.4, eq. 2
pipedream_vertical_sync     W(t-n+1)                                     PipeDream 3.4, eq. 3
pipedream_no_stashing       forward W_s(t-n+s), backward W(t): no true   PipeDream 3.4
                            gradient of the loss anywhere
2bw                         W(t-1)                                       PipeDream-2BW 3.1
asp, on r workers           W(t-r+1)                                     PipeDream 2.1
paci                        microbatch j (from 0): forward               arXiv 2606.07881, 3
                            W_s(floor((j-n+s)/m)), backward W(t)
==========================  ===========================================  =======================

A version before the first is W(0) (the pipeline fills up).  The update itself is always applied to
the newest weights, W(t).  If 2BW's pipeline is drained after a batch (``flush_after``), the next
one reads W(t).  GPipe, PipeDream-Flush (2BW paper, 3.2) and model parallelism are sequential
training.  What papers do about stale weights besides, say predict them (``mitigation``), is in
:mod:`pipekit.mitigation_equations`.

Where stage s is on r_s workers (PipeDream 3.2, 3.3), worker k mod r_s of them has microbatch k.  In
PipeDream r_s minibatches in a row, on the same weights, make one update with the mean of their
gradients, so that t counts rounds of r_s minibatches, and n - s + 1 above becomes the number of
rounds in flight, ceil((r_s + ... + r_n) / r_s).  Gradients are summed for each worker first, and
then over the workers in their order.  Where microbatches are shared out in another way (half of
them come from the pipeline's other end, say), or a worker adds them up in another order, ``shares``
says so.

With a loss scale, S(t) being the scale after t updates, the losses of update t+1 are multiplied by
S(v), v being the version that the last stage reads for them, and its gradient, once summed, by
1/S(v).  If that is finite, everywhere, the update is made, and S grows after so many in a row.
Else W(t+1) = W(t), no optimizer or scheduler takes a step, and S(t+1) is the less of S(t) and S(v)
times the backoff (``torch.amp.GradScaler``, where v = t).

A weight that layers of several stages share has a copy on each, of the versions which that stage
reads.  The gradient of a microbatch is summed over all uses as backpropagation comes to them, from
the last to the first, whichever stages these are on; so that it is the unsplit model's.  Then it is
summed like any other of the first of these stages; in a norm it counts once.
"""

import copy
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipekit.layers.randomness import layer_seed
from pipekit.losses.loss_scale import LossScale
from pipekit.mitigation_equations import Equations, Past, Weights
from pipekit.trees import leaves, refill

_Copied = tuple[nn.Parameter, nn.Parameter]
"""A stage's copy of a weight, and that of the next stage which has it too."""

_PACI = "paci"
_NO_STASHING = "pipedream_no_stashing", _PACI


# The version that stage s (from 0) reads for batch t (from 0), where stage i has r[i] workers and
# w[i] rounds in flight.
def _current(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    return t


def _staggered(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    return max(t // r[s] - w[s] + 1, 0)


def _oldest(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    # As many minibatches as the first stage has seen, or the next smaller number that is a round.
    return _staggered(t, 0, r, w) * r[0] // r[s]


def _previous(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    # The paper writes max(floor((k-1)/m) - 1, 0) for microbatch k from 1; floor((k-1)/m) is t.
    return max(t - 1, 0)


def _asynchronous(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    return max(t - r[s] + 1, 0)


_VERSION_READ: dict[str, Callable[[int, int, Sequence[int], Sequence[int]], int]] = {
    "sequential": _current,
    "model_parallel": _current,
    "gpipe": _current,
    "flush": _current,
    "pipedream": _staggered,
    "pipedream_no_stashing": _staggered,
    _PACI: _current,  # each microbatch another one: see _Reads
    "pipedream_vertical_sync": _oldest,
    "2bw": _previous,
    "asp": _asynchronous,
}


@dataclass(frozen=True)
class _Reads:
    """Which versions a method reads.

    Attributes:
        method: a name of the module's table.
        replicas: workers of each stage.
        in_flight: rounds in flight in each stage.
        rounds: batches that an update of each stage averages.
        microbatches: of a batch.
        flush_after: the batches after which 2BW's pipeline is drained.
    """

    method: str
    replicas: Sequence[int]
    in_flight: Sequence[int]
    rounds: Sequence[int]
    microbatches: int
    flush_after: Collection[int]

    def version(self, s: int, t: int, k: int) -> int:
        """Return what the forward of microbatch k, of batch t, reads on stage s."""
        if self.method == _PACI:
            return max(k - self.in_flight[s] + 1, 0) // self.microbatches
        if self.method == "2bw" and t - 1 in self.flush_after:
            return t
        return _VERSION_READ[self.method](t, s, self.replicas, self.in_flight)

    def delay(self, s: int) -> int:
        """Return the most updates from what a forward reads on stage s to its own update."""
        span = 4 * max(self.in_flight) * max(self.replicas)
        return max(
            k // self.microbatches // self.rounds[s] - self.version(s, k // self.microbatches, k)
            for k in range(span * self.microbatches)
        )


@dataclass(frozen=True)
class OracleRun:
    """What a training run by the equations went through.

    Attributes:
        weights: all parameters after 0, 1, 2, ... batches; ``weights[t]`` is the papers' W(t).
        buffers: the buffers at the end (batch-norm statistics, for example).
        losses: the loss of each batch, at the weights that the method reads.
        gradients: the gradient of each update, before clipping.  A parameter that got none in that
            update is absent.
        optimizers: the state at the end of each stage's optimizer, {} for a stage without.
        loss_scales: of each update, if losses are scaled.
        skipped: the updates whose gradient was not finite, from 1, likewise.
    """

    weights: list[Weights]
    buffers: dict[str, Tensor]
    losses: list[float]
    gradients: list[Weights]
    optimizers: list[dict[str, Any]]
    loss_scales: list[float]
    skipped: list[int]


def train(
    model: nn.Sequential,
    batches: Sequence[tuple[Any, Any]],
    *,
    method: str,
    balance: Sequence[int],
    microbatches: int = 1,
    replicas: Sequence[int] | None = None,
    in_flight: Sequence[int] | None = None,
    shares: Sequence[Sequence[Sequence[int]]] | None = None,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    loss: Callable[[Any, Any], Tensor],
    seed: int = 0,
    autocast: torch.dtype | None = None,
    loss_scale: LossScale | None = None,
    clip_norm: float | None = None,
    lr_scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    flush_after: Collection[int] = (),
    mitigation: Equations | None = None,
    first_microbatch: int = 0,
    threads: int = 1,
) -> OracleRun:
    """Train a copy of ``model`` by the update equation of ``method``.

    Args:
        model: the unsplit model; it is left as it is.
        batches: (input, target) pairs, each a tensor or a tuple, list or dict of tensors with the
            rows along dimension 0; one update each, but for replicas in PipeDream.
        method: a name of the module's table, or ``gpipe``, ``flush`` or ``model_parallel``.
        balance: layers of each stage, in order.
        microbatches: the parts of a batch (``torch.tensor_split``); 1 for the PipeDream variants
            and ASP.
        replicas: workers of each stage; by default one each.
        in_flight: rounds of minibatches in flight in each stage of PipeDream; by default as above.
        shares: for each stage and each of its workers, the microbatches of a batch (from 0) whose
            gradients that worker adds up, in this order; by default as above, in their own order.
        optimizer: makes the optimizer of one stage from all its parameters.  A stage without
            parameters gets none.
        loss: of (output, target), averaged over rows unless its ``reduction`` is ``"sum"``.
        seed: the run's seed; see :mod:`pipekit.layers.randomness`.
        autocast: what forwards and losses compute in where that is safe (``torch.autocast``), or
            None; a weight is narrowed each time that it is used.
        loss_scale: the rule by which it changes, or None.
        clip_norm: largest 2-norm of the whole model's gradient (``clip_grad_norm_``).
        lr_scheduler: makes the scheduler of one optimizer, stepped after each update.
        flush_after: of 2BW, the batches (from 0) after which the pipeline is drained.
        mitigation: what is done about stale weights, or None.
        first_microbatch: microbatches of earlier runs, for the random numbers only: every run
            starts with an empty pipeline and a new optimizer.
        threads: intra-op threads of torch; another number may round differently.

    Raises:
        ValueError: for an unknown method, a balance that does not fit the model, microbatches with
            a PipeDream variant, a batch with too few rows, or stages that have something to settle
            at an update and do not update together.
    """
    replicas = list(replicas or [1] * len(balance))
    _check_arguments(model, method, balance, microbatches, replicas)
    for share in shares or ():
        if sorted(chain.from_iterable(share)) != list(range(microbatches)):
            raise ValueError(
                f"shares {share} do not have each of the {microbatches} microbatches of a batch "
                f"once; name for each stage and worker those that it has"
            )
    in_flight = in_flight or [math.ceil(sum(replicas[s:]) / r) for s, r in enumerate(replicas)]
    rounds = replicas if method.startswith("pipedream") else [1] * len(balance)
    reads = _Reads(method, replicas, in_flight, rounds, microbatches, flush_after)
    unsplit, model = model, _with_copies(model, balance).train()
    copies = _copies(unsplit, model)
    shared = _shared(model, balance, copies)
    if (shared or clip_norm is not None or loss_scale) and len(set(rounds)) > 1:
        raise ValueError(
            "stages on different numbers of workers update at different times, so that they have "
            "no gradient in common to clip or scale and no weight to share; give all as many"
        )
    averaged = getattr(loss, "reduction", "mean") != "sum"
    order: Sequence[Sequence[Sequence[int]] | None] = shares or [None for _ in balance]
    stages = [
        _Stage(
            named,
            width,
            length,
            optimizer,
            lr_scheduler,
            averaged,
            own,
            Past(s, len(balance), reads.delay(s)),
            mitigation,
        )
        for s, (named, width, length, own) in enumerate(
            zip(_stage_parameters(model, balance), replicas, rounds, order, strict=True)
        )
    ]
    weights = [_snapshot(model)]
    losses: list[float] = []
    gradients: list[Weights] = []
    scales: list[float] = []  # of each update
    finite: list[bool] = []

    with _intra_op_threads(threads):
        for t, (inputs, targets) in enumerate(batches):
            for s, stage in enumerate(stages):
                stage.load(reads.version(s, t, t * microbatches))
            rows = _rows(inputs)
            if rows < microbatches:
                raise ValueError(
                    f"batch {t} has {rows} rows for {microbatches} microbatches; "
                    "give it a row for each"
                )
            known = reads.version(len(stages) - 1, t, t * microbatches)
            scale = _scale_after(loss_scale, scales[:known], finite[:known]) if loss_scale else 1.0
            # A loop, not sum(): since Python 3.12 sum() compensates its rounding errors.
            batch_loss = 0.0
            parts = zip(_split(inputs, microbatches), _split(targets, microbatches), strict=True)
            for k, (part, target) in enumerate(parts, start=t * microbatches):
                if method == _PACI:
                    for s, stage in enumerate(stages):
                        stage.load(reads.version(s, t, k))
                with _autocast(autocast):
                    output = _forward(model, part, seed, first_microbatch + k, shared)
                    part_loss = loss(output, target)
                if averaged:
                    part_loss = part_loss * (_rows(part) / rows)
                if method in _NO_STASHING:
                    for stage in stages:
                        stage.load_for_backward()
                torch.autograd.backward(part_loss * scale if loss_scale else part_loss)
                _pass_to_first(copies)
                for stage in stages:
                    stage.take_gradients(k, t)
                batch_loss += part_loss.item()
            losses.append(batch_loss)

            last = t + 1 == len(batches)
            updating = [stage for stage in stages if stage.ends_round() or last]
            for stage in updating:
                stage.sum_gradients()
            _give_to_all(copies)
            if updating and loss_scale:
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad = parameter.grad * (1 / scale)
                scales.append(scale)
                finite.append(all(g.isfinite().all() for g in _gradients(model).values()))
            gradients.append(_gradients(model))
            for stage in stages:
                stage.load_newest()
            made = not finite or finite[-1]
            if clip_norm is not None and made:
                nn.utils.clip_grad_norm_([one for one, *_ in copies], clip_norm)
                _give_to_all(copies)
            for stage in updating:
                stage.update(made)
            weights.append(_snapshot(model))

    buffers = {k: v.clone() for k, v in model.state_dict().items() if k not in weights[0]}
    return OracleRun(
        weights,
        buffers,
        losses,
        gradients,
        [stage.optimizer.state_dict() if stage.optimizer else {} for stage in stages],
        scales,
        [update for update, fine in enumerate(finite, start=1) if not fine],
    )


class _Stage:
    """The parameters of one stage, with all that they ever were.

    Args:
        parameters: by their names in the unsplit model.
        width: workers that it is on.
        length: batches that an update averages.
        optimizer: makes its optimizer.
        lr_scheduler: makes the scheduler of that.
        averaged: whether the loss is a mean.
        shares: the microbatches of a batch that each worker has, in its order; None: in turn.
        past: where it is, and what it was: nothing yet.
        mitigation: what is done about stale weights, or None.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        width: int,
        length: int,
        optimizer: Callable[[list[nn.Parameter]], Optimizer],
        lr_scheduler: Callable[[Optimizer], LRScheduler] | None,
        averaged: bool,
        shares: Sequence[Sequence[int]] | None,
        past: Past,
        mitigation: Equations | None,
    ) -> None:
        self._shares, self._past, self._mitigation = shares, past, mitigation
        self._equations, self._read = mitigation or Equations(), 0
        self._parameters, self._width, self._length = parameters, width, length
        self._averaged = averaged
        self.optimizer = optimizer(list(parameters.values())) if parameters else None
        self._scheduler = lr_scheduler(self.optimizer) if lr_scheduler and self.optimizer else None
        self._note(self._copy())
        self._taken: dict[int, Weights] = {}  # by microbatch, since the last update
        self._batches: set[int] = set()  # since the last update

    def load(self, version: int) -> None:
        """Overwrite the parameters with a version of the weights.

        Through ``.data``, which autograd does not watch: between a forward and its backward this
        changes the weights that the graph has saved by reference.  Training without weight
        stashing is just that error, made on purpose.
        """
        self._read = version
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._equations.forward(self._past, name, version))

    def load_for_backward(self) -> None:
        """Overwrite the parameters with what a backward reads that comes without stashing."""
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._equations.backward(self._past, name, self._updates))

    def load_newest(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.data.copy_(self._past.weights[-1][name])

    def take_gradients(self, microbatch: int, batch: int) -> None:
        """Note a microbatch's gradients."""
        self._batches.add(batch)
        own = self._taken[microbatch] = {}
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                own[name] = parameter.grad
            parameter.grad = None

    def ends_round(self) -> bool:
        """Return whether an update comes now, after a batch."""
        return len(self._batches) == self._length

    def sum_gradients(self) -> None:
        """Sum over the workers, in order, and average over the batches since the last update."""
        for name, parameter in self._parameters.items():
            for share in self._of_workers():
                own: Tensor | None = None
                for microbatch in share:
                    gradient = self._taken[microbatch].get(name)
                    if gradient is not None:
                        own = gradient if own is None else own + gradient
                if own is not None:
                    parameter.grad = own if parameter.grad is None else parameter.grad + own
            if parameter.grad is not None and self._averaged and len(self._batches) > 1:
                parameter.grad = parameter.grad / len(self._batches)
        self._taken = {}
        self._batches.clear()

    def _of_workers(self) -> list[list[int]]:
        """Return the microbatches since the last update that each worker has, in its order."""
        if self._shares is None:
            return [[k for k in self._taken if k % self._width == w] for w in range(self._width)]
        first = min(self._taken)
        return [[first + k for k in share] for share in self._shares]

    def update(self, made: bool) -> None:
        """Add a version: that of an optimizer's step, or if that is not ``made``, the newest."""
        if self.optimizer and made:
            self._step(self.optimizer)
        if self._scheduler and made:
            self._scheduler.step()
        for parameter in self._parameters.values():
            parameter.grad = None
        self._note(self._copy())

    @property
    def _updates(self) -> int:
        return len(self._past.weights) - 1

    def _step(self, optimizer: Optimizer) -> None:
        if self._mitigation is None:
            optimizer.step()
            return
        past, equations, t = self._past, self._mitigation, self._updates
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                parameter.grad = equations.gradient(past, name, self._read, t, parameter.grad)
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * equations.rate(past, t)
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        past.stepped.append(self._copy())
        for name, parameter in self._parameters.items():
            parameter.data.copy_(equations.after(past, name, t))

    def _note(self, weights: Weights) -> None:
        """Remember a version, and if it may be asked for, what its optimizer keeps."""
        self._past.weights.append(weights)
        if self._mitigation and self.optimizer:
            state: Mapping[Any, dict[str, Any]] = self.optimizer.state
            groups = self.optimizer.param_groups
            options = {p: {**g, "params": []} for g in groups for p in g["params"]}
            named = self._parameters.items()
            self._past.states.append({n: copy.deepcopy(state.get(p, {})) for n, p in named})
            self._past.options.append({name: options[p] for name, p in named})

    def _copy(self) -> Weights:
        return {name: p.detach().clone() for name, p in self._parameters.items()}


def _forward(
    model: nn.Sequential, value: Any, seed: int, microbatch: int, shared: dict[int, list[_Copied]]
) -> Any:
    """Run all layers, each with the random numbers that belong to it and the microbatch.

    The graph is not cut where a stage ends.  A cut would change no value, and the bits neither as
    long as what crosses it, activations and gradients, keeps its strides.
    """
    # The CPU's generator alone: torch.manual_seed asks for every accelerator each time, which takes
    # longer than a small layer.
    with torch.random.fork_rng(devices=[]):
        for index, layer in enumerate(model):
            torch.default_generator.manual_seed(layer_seed(seed, index, microbatch))
            value = layer(value)
            if index in shared:
                value = _begin_backward(value, shared[index])
    return value


def _begin_backward(output: Any, shared: list[_Copied]) -> Any:
    """Return a stage's output, at whose backward the stage gets what later ones have added up."""
    tensors = leaves(output)
    reached = [number for number, tensor in enumerate(tensors) if tensor.requires_grad]
    if reached:
        weights = [early for early, _ in shared]
        begun = _BeginBackward.apply(shared, *weights, *(tensors[n] for n in reached))
        for number, tensor in zip(reached, begun, strict=True):
            tensors[number] = tensor
    return refill(output, tensors)


class _BeginBackward(torch.autograd.Function):
    """Ends a stage's forward; begins its backward with what later stages have added up.

    In its forward it is the last node of the stage, so that it is the first one in its backward:
    gradients that it gives come before those of the stage's own uses of a weight.
    """

    @staticmethod
    def forward(ctx: Any, shared: list[_Copied], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.shared = shared
        ctx.set_materialize_grads(False)
        return tuple(tensor.clone() for tensor in tensors[len(shared) :])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        added_up = [late.grad for _, late in ctx.shared]
        for _, late in ctx.shared:
            late.grad = None
        return (None, *added_up, *gradients)


def _snapshot(model: nn.Sequential) -> Weights:
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach().clone() for name, parameter in named}


def _gradients(model: nn.Sequential) -> Weights:
    named = model.named_parameters(remove_duplicate=False)
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def _stage_parameters(
    model: nn.Sequential, balance: Sequence[int]
) -> list[dict[str, nn.Parameter]]:
    """Return each stage's parameters by their names in the unsplit model."""
    layers = iter(model)
    stages = []
    for length in balance:
        own = {id(p) for _ in range(length) for p in next(layers).parameters()}
        stages.append({name: p for name, p in model.named_parameters() if id(p) in own})
    return stages


def _with_copies(model: nn.Sequential, balance: Sequence[int]) -> nn.Sequential:
    """Return a copy of a model in which every stage has parameters of its own."""
    layers = iter(model._modules.items())
    stages = [copy.deepcopy(list(islice(layers, length))) for length in balance]
    return nn.Sequential(OrderedDict(chain.from_iterable(stages)))


def _copies(unsplit: nn.Sequential, model: nn.Sequential) -> list[list[nn.Parameter]]:
    """Return the copies that the stages have, in order, of each of the unsplit's parameters."""
    found: dict[nn.Parameter, dict[nn.Parameter, None]] = defaultdict(dict)
    for name, parameter in unsplit.named_parameters(remove_duplicate=False):
        found[parameter][model.get_parameter(name)] = None
    return [list(copies) for copies in found.values()]


def _shared(
    model: nn.Sequential, balance: Sequence[int], copies: Sequence[Sequence[nn.Parameter]]
) -> dict[int, list[_Copied]]:
    """Return by the last layer of each stage those of its weights that a later one has as well."""
    stages = _stage_parameters(model, balance)
    found: dict[int, list[_Copied]] = defaultdict(list)
    for early, late in chain.from_iterable(map(pairwise, copies)):
        (stage,) = [s for s, own in enumerate(stages) if any(early is p for p in own.values())]
        if early.requires_grad:
            found[sum(balance[: stage + 1]) - 1].append((early, late))
    return found


def _pass_to_first(copies: Sequence[Sequence[nn.Parameter]]) -> None:
    """Add what no backward of an earlier stage has begun with, since its output had no gradient."""
    for same in copies:
        for late, early in pairwise(reversed(same)):
            if late.grad is not None:
                early.grad = late.grad if early.grad is None else late.grad + early.grad
                late.grad = None


def _give_to_all(copies: Sequence[Sequence[nn.Parameter]]) -> None:
    """Give all copies of a parameter the gradient of the first one."""
    for first, *others in copies:
        for other in others:
            other.grad = first.grad


def _autocast(dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype, cache_enabled=False)


def _scale_after(rule: LossScale, scales: Sequence[float], finite: Sequence[bool]) -> float:
    """Return the loss scale after updates that had these scales and were finite or not."""
    scale, in_a_row = rule.initial, 0
    for own, fine in zip(scales, finite, strict=True):
        in_a_row = in_a_row + 1 if fine else 0
        if not fine:
            scale = max(min(scale, own * rule.backoff), 2.0**-126)
        elif in_a_row % rule.interval == 0 and scale * rule.growth < 2.0**128:
            scale = scale * rule.growth
    return scale


def _rows(value: Any) -> int:
    """Count the rows of the first tensor in ``value``."""
    while not isinstance(value, Tensor):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return len(value)


def _split(value: Any, parts: int) -> list[Any]:
    """Split every tensor in ``value`` along dimension 0 into ``parts``."""
    if isinstance(value, Tensor):
        return list(torch.tensor_split(value, parts))
    if isinstance(value, dict):
        columns = zip(*(_split(item, parts) for item in value.values()), strict=True)
        return [dict(zip(value, column, strict=True)) for column in columns]
    return [type(value)(column) for column in zip(*(_split(v, parts) for v in value), strict=True)]


@contextmanager
def _intra_op_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_arguments(
    model: nn.Sequential,
    method: str,
    balance: Sequence[int],
    microbatches: int,
    replicas: Sequence[int],
) -> None:
    if method not in _VERSION_READ:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(_VERSION_READ)}")
    if sum(balance) != len(model) or min(balance, default=0) < 1:
        raise ValueError(
            f"balance {list(balance)} does not fit the model; give each stage at least one of its "
            f"{len(model)} layers and use them all"
        )
    whole = method.startswith("pipedream") or method == "asp"
    if microbatches < 1 or (microbatches > 1 and whole):
        raise ValueError(
            f"{microbatches} microbatches do not go with {method}; PipeDream and ASP update after "
            "each minibatch, so give them 1, and any other method at least 1"
        )
    if len(replicas) != len(balance) or min(replicas) < 1:
        raise ValueError(
            f"replicas {list(replicas)} do not fit {len(balance)} stages; name at least 1 for each"
        )
