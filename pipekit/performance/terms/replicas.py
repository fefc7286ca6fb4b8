"""Seconds after the last pass: gradients and weights between replicas, and the optimizer."""

from pipekit.performance.terms.vocabulary import vocabulary
from pipekit.performance.training import TrainingSetup

HIDDEN = 0.5  # of a pass's time in which messages can run beside it


def parameters(run: TrainingSetup) -> tuple[float, float]:
    """Return the weights on a rank of the largest stage: those of experts, and all others."""
    shape, layout = run.shape, run.layout
    tables = 1.0 if shape.tied or layout.pp > 1 else 2.0
    if layout.spreads_vocabulary:
        tables = (2 - shape.tied) / layout.pp
    return weights(run, shape.layers / layout.pp, tables)


def weights(run: TrainingSetup, layers: float, tables: float) -> tuple[float, float]:
    """Return likewise those of a rank with so many layers and vocabularies."""
    shape, layout = run.shape, run.layout
    share = layers / shape.layers
    dense = share * shape.dense_parameters / layout.tp
    dense += tables * vocabulary(run) * shape.token_numbers
    return share * shape.expert_parameters / layout.ep, dense


def seconds(run: TrainingSetup, slot_s: float) -> float:
    """Return the seconds of a step after its passes, ``slot_s`` each microbatch on a worker."""
    if not run.trains_weights:
        return 0.0
    return _exposed(run, _exchange(run), slot_s) + _tied(run) + _optimizer(run)


def _exchange(run: TrainingSetup) -> float:
    """Return seconds to reduce gradients and gather weights, or to all-reduce gradients.

    Both send (n - 1) / n of all bytes twice around a ring of n ranks.  ZeRO 2 reduces gradients
    after each microbatch, and ZeRO 3 gathers weights for each pass as well; not in a pipeline,
    where whole ones stay on their ranks.
    """
    layout, links, framework = run.layout, run.links, run.framework
    experts, dense = parameters(run)
    replicas, moe_replicas = layout.dp * layout.cp, layout.expert_replicas
    each = 1.0 if run.dtype == "float8" else 2.0  # of a weight; blocks of 4 bits are scaled later
    zero = layout.zero if layout.pp == 1 else 1
    reduced = layout.microbatches if zero >= 2 else 1
    gathered = 2 * layout.microbatches if zero == 3 else 1
    size = reduced * framework.gradient_bytes + gathered * each
    if framework.overlaps_replicas:
        found = links.scatter(replicas, size * dense, layout.tp)
    else:
        found = links.all_reduce(replicas, size / 2 * dense, layout.tp)
    rate = links.rate(moe_replicas * layout.ep)
    return found + size * experts * (moe_replicas - 1) / moe_replicas / rate


def _exposed(run: TrainingSetup, exchange_s: float, slot_s: float) -> float:
    """Return what of the exchange is not hidden behind passes; at least the last layer's is late.

    It runs beside a worker's last microbatches, or all (ZeRO 2 and 3 without a pipeline).
    """
    if not run.framework.overlaps_replicas:
        return exchange_s
    layout = run.layout
    last = layout.pp if layout.pp > 1 or layout.zero < 2 else layout.microbatches
    hidden = HIDDEN * slot_s * min(last, layout.microbatches)
    return max(exchange_s - hidden, exchange_s / max(run.shape.layers / layout.pp, 1))


def _tied(run: TrainingSetup) -> float:
    layout, shape = run.layout, run.shape
    if not shape.tied or layout.pp == 1 or layout.spreads_vocabulary:
        return 0.0
    size = run.framework.gradient_bytes * vocabulary(run) * shape.token_numbers
    return run.links.all_reduce(2, size, layout.gpus // layout.pp)


def _optimizer(run: TrainingSetup) -> float:
    experts, dense = parameters(run)
    if run.layout.zero:
        experts /= run.layout.expert_replicas
        dense /= run.layout.dp * run.layout.cp
    return run.kernels.traffic(run.framework.optimizer_bytes * (experts + dense))
