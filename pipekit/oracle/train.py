"""Training by the update equations of the papers.

With a loss scale, S(t) being the scale after t updates, the losses of update t+1 are multiplied by
S(v), v being the version that the last stage reads for them, and its gradient, once summed, by
1/S(v).  If that is finite, everywhere, the update is made, and S grows after so many in a row.
Else W(t+1) = W(t), no optimizer or scheduler takes a step, and S(t+1) is the less of S(t) and S(v)
times the backoff (``torch.amp.GradScaler``, where v = t).
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pipekit.layers.seeded import layer_seed
from pipekit.losses.losses import LossScale
from pipekit.oracle.mitigation_equations import Equations, Past, Weights
from pipekit.oracle.shared_weights import (
    Copied,
    begin_backward,
    copies_of,
    give_to_all,
    pass_to_first,
    shared_by_stages,
    stage_parameters,
    with_copies,
)
from pipekit.oracle.stage import Stage
from pipekit.oracle.versions import NO_STASHING, PACI, VERSION_READ, Reads


@dataclass(frozen=True)
class OracleRun:
    """What a training run by the equations went through."""

    weights: list[Weights]  # after 0, 1, 2, ... batches: ``weights[t]`` is the papers' W(t)
    buffers: dict[str, Tensor]  # at the end
    losses: list[float]  # of each batch, at the weights that the method reads
    gradients: list[Weights]  # of each update, before clipping, of parameters that got one
    optimizers: list[dict[str, Any]]  # states at the end, {} for a stage without
    loss_scales: list[float]  # of each update, if losses are scaled
    skipped: list[int]  # the updates whose gradient was not finite, from 1, likewise


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
        model: the unsplit model.
        batches: (input, target) pairs, trees of tensors with the rows along dimension 0; one update
            each, but for replicas in PipeDream.
        method: of :mod:`pipekit.oracle.versions`, or ``gpipe``, ``flush`` or ``model_parallel``.
        balance: layers of each stage, in order.
        microbatches: of a batch (``torch.tensor_split``); 1 for PipeDream's variants and ASP.
        replicas: workers of each stage; by default one each.
        in_flight: rounds of minibatches in flight in each stage of PipeDream.
        shares: for each stage and each of its workers, the microbatches of a batch (from 0) whose
            gradients that worker adds up, in this order.
        optimizer: makes the optimizer of one stage, if it has parameters, from all of these.
        loss: of (output, target), averaged over rows unless its ``reduction`` is ``"sum"``.
        seed: of :mod:`pipekit.layers.seeded`.
        autocast: of ``torch.autocast``; a weight is narrowed each time that it is used.
        loss_scale: the rule by which it changes.
        clip_norm: largest 2-norm of the whole model's gradient (``clip_grad_norm_``).
        lr_scheduler: makes the scheduler of one optimizer, stepped after each update.
        flush_after: of 2BW, the batches (from 0) after which the pipeline is drained.
        mitigation: what is done about stale weights.
        first_microbatch: microbatches of earlier runs, for the random numbers only.
        threads: intra-op threads of torch; another number may round differently.

    Raises:
        ValueError: for an unknown method, a balance that does not fit the model, microbatches with
            a PipeDream variant, a batch with too few rows, or stages that have something to settle
            at an update and do not update together.
    """
    replicas = list(replicas or [1] * len(balance))
    _check_arguments(model, method, balance, microbatches, replicas, shares or ())
    in_flight = in_flight or [math.ceil(sum(replicas[s:]) / r) for s, r in enumerate(replicas)]
    rounds = replicas if method.startswith("pipedream") else [1] * len(balance)
    reads = Reads(method, replicas, in_flight, rounds, microbatches, flush_after)
    unsplit, model = model, with_copies(model, balance).train()
    copies = copies_of(unsplit, model)
    shared = shared_by_stages(model, balance, copies)
    if shared or clip_norm is not None or loss_scale:
        _check_updates_together(rounds)
    averaged = getattr(loss, "reduction", "mean") != "sum"
    order: Sequence[Sequence[Sequence[int]] | None] = shares or [None for _ in balance]
    each = zip(stage_parameters(model, balance), replicas, rounds, order, strict=True)
    pasts = [Past(s, len(balance), reads.delay(s)) for s in range(len(balance))]
    stages = [
        Stage(named, width, length, optimizer, lr_scheduler, averaged, own, past, mitigation)
        for past, (named, width, length, own) in zip(pasts, each, strict=True)
    ]
    weights = [_snapshot(model)]
    losses: list[float] = []
    gradients: list[Weights] = []
    scales: list[float] = []  # of each update
    finite: list[bool] = []

    with _intra_op_threads(threads):
        for t, (inputs, targets) in enumerate(batches):
            _load(stages, reads, t, t * microbatches)
            _check_rows(t, _rows(inputs), microbatches)
            known = reads.version(len(stages) - 1, t, t * microbatches)
            scale = _scale_after(loss_scale, scales[:known], finite[:known]) if loss_scale else 1.0
            # A loop, not sum(): since Python 3.12 sum() compensates its rounding errors.
            batch_loss = 0.0
            parts = zip(_split(inputs, microbatches), _split(targets, microbatches), strict=True)
            for k, (part, target) in enumerate(parts, start=t * microbatches):
                if method == PACI:
                    _load(stages, reads, t, k)
                with _autocast(autocast):
                    output = _forward(model, part, seed, first_microbatch + k, shared)
                    part_loss = loss(output, target)
                if averaged:
                    part_loss = part_loss * (_rows(part) / _rows(inputs))
                if method in NO_STASHING:
                    for stage in stages:
                        stage.load_for_backward()
                torch.autograd.backward(part_loss * scale if loss_scale else part_loss)
                pass_to_first(copies)
                for stage in stages:
                    stage.take_gradients(k, t)
                batch_loss += part_loss.item()
            losses.append(batch_loss)

            updating = [stage for stage in stages if stage.ends_round() or t + 1 == len(batches)]
            for stage in updating:
                stage.sum_gradients()
            give_to_all(copies)
            if updating and loss_scale:
                _scale_gradients(model, 1 / scale)
                scales.append(scale)
                finite.append(all(g.isfinite().all() for g in _gradients(model).values()))
            gradients.append(_gradients(model))
            for stage in stages:
                stage.load_newest()
            made = not finite or finite[-1]
            if clip_norm is not None and made:
                nn.utils.clip_grad_norm_([one for one, *_ in copies], clip_norm)
                give_to_all(copies)
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


def _load(stages: Sequence[Stage], reads: Reads, batch: int, microbatch: int) -> None:
    for s, stage in enumerate(stages):
        stage.load(reads.version(s, batch, microbatch))


def _forward(
    model: nn.Sequential, value: Any, seed: int, microbatch: int, shared: dict[int, list[Copied]]
) -> Any:
    # The graph is not cut where a stage ends: no bits change if what crosses keeps its strides.
    # The CPU's generator alone: torch.manual_seed asks for every accelerator, which takes long.
    with torch.random.fork_rng(devices=[]):
        for index, layer in enumerate(model):
            torch.default_generator.manual_seed(layer_seed(seed, index, microbatch))
            value = layer(value)
            if index in shared:
                value = begin_backward(value, shared[index])
    return value


def _snapshot(model: nn.Sequential) -> Weights:
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter.detach().clone() for name, parameter in named}


def _gradients(model: nn.Sequential) -> Weights:
    named = model.named_parameters(remove_duplicate=False)
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def _scale_gradients(model: nn.Sequential, factor: float) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * factor


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
    while not isinstance(value, Tensor):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return len(value)


def _split(value: Any, parts: int) -> list[Any]:
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
    shares: Sequence[Sequence[Sequence[int]]],
) -> None:
    if method not in VERSION_READ:
        raise ValueError(f"unknown method {method!r}; choose one of {', '.join(VERSION_READ)}")
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
    for share in shares:
        if sorted(chain.from_iterable(share)) != list(range(microbatches)):
            raise ValueError(
                f"shares {share} do not have each of the {microbatches} microbatches of a batch "
                f"once; name for each stage and worker those that it has"
            )


def _check_updates_together(rounds: Sequence[int]) -> None:
    if len(set(rounds)) > 1:
        raise ValueError(
            "stages on different numbers of workers update at different times, so that they have "
            "no gradient in common to clip or scale and no weight to share; give all as many"
        )


def _check_rows(batch: int, rows: int, microbatches: int) -> None:
    if rows < microbatches:
        raise ValueError(
            f"batch {batch} has {rows} rows for {microbatches} microbatches; give it a row for each"
        )
