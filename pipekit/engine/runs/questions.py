"""Questions to the user's model and loss before training, asked of copies of them."""

import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pipekit.devices import to_device
from pipekit.engine.arguments import require_weights_as_read
from pipekit.engine.batches import Batch, copied, part_sizes, split
from pipekit.engine.config import Loss
from pipekit.engine.execution.special_microbatches import require_same_in_chunks
from pipekit.engine.runs.assembly import Parts
from pipekit.engine.runs.optimizer_questions import ask_optimizer
from pipekit.engine.runs.users_model import users_models
from pipekit.host.user_frames import warn
from pipekit.layers.module_state import state_untouched
from pipekit.layers.pass_state import autocast, rounding
from pipekit.layers.python_state import is_pure, module_names
from pipekit.layers.user_functions import MOST_BYTES, FunctionCopies
from pipekit.losses.checks import (
    another_whole,
    refusal_of_reading,
    warn_of_another_whole,
)
from pipekit.partition.checks import OriginalUnread, warn_of_mixed_rows
from pipekit.partition.probe import Probe
from pipekit.plans import stage_of_layers
from pipekit.schedules import Schedule
from pipekit.trees import Tree, differentiable, leaves, tensors_in, tree_bytes, tree_map


@dataclass(frozen=True)
class FirstBatch:
    """A training's first batch, and what the model makes of it."""

    parts: Parts
    batch: Batch
    tried: Probe  # its first microbatch in training mode
    drawn: Set[str]  # libraries from whose generators reading it has drawn

    @property
    def original(self) -> nn.Module:
        """The user's layers, which never run."""
        return self.parts.model.original

    @property
    def dtype(self) -> torch.dtype | None:
        """That of mixed precision."""
        return self.parts.execution.autocast

    def evaluate(self, rows: Tree) -> Probe:
        """Run some of its rows in evaluation mode."""
        return self.parts.model.probe(rows, self.dtype)


def ask(first: FirstBatch, schedule: Schedule) -> None:
    """Ask before a model's first training by a schedule; ValueError refuses what it finds."""
    model, optimizer, batch = first.parts.model, first.parts.optimizer, first.batch
    if any(tensor.grad_fn for tensor in tensors_in(batch[:2])):
        raise ValueError(
            "a batch was computed from weights that require gradients, which no pipeline gives "
            "them: make what computes it the first layer of the model, or detach the batch, "
            "x.detach()"
        )
    if not model.users.trained:
        warn(
            "no parameter of the model is trained: call model.requires_grad_(True) before "
            "Pipeline(model), or the pipeline's own requires_grad_(names)"
        )
    if first.tried.recorded and first.parts.runner.copies_loss:
        warn(
            f"hooks of layers keep something in {', '.join(first.tried.recorded)}: over processes "
            f"they do so in the workers' copies, of which nobody hears; use transport='threads'"
        )
    if needed := first.tried.needed_weights:
        require_weights_as_read(needed, model.configs, schedule)
    if schedule.chunks > 1:
        require_same_in_chunks(batch, schedule.chunks, first.evaluate)
    if model.was_evaluating:
        warn_of_mode(first)
    microbatches = batch.cut_input()
    if len(microbatches) > 1 and all(batch.sizes):
        warn_of_mixed_rows(microbatches[0], microbatches[1], first.evaluate)
    ask_loss(first)
    made_by = getattr(optimizer, "func", optimizer)  # of a partial
    if made_by not in vars(torch.optim).values():
        ask_optimizer(optimizer, model)


def warn_of_mode(first: FirstBatch) -> None:
    """Warn of a model that was given in evaluation mode, and does other things in training."""
    try:
        with warnings.catch_warnings(action="ignore"):
            evaluated = leaves(first.evaluate(first.batch.cut_input()[0]).output)
        bound = rounding(first.dtype or torch.float32)
        pairs = zip(leaves(first.tried.output), evaluated, strict=True)
        if all(torch.allclose(one, other, bound, bound, equal_nan=True) for one, other in pairs):
            return
    except Exception:  # of whatever kind: outputs have other shapes, say
        pass
    warn(
        "the model is in evaluation mode, as loaded ones are, and is trained in training mode, in "
        "which its output differs: call model.train() before Pipeline(model), and then .eval() "
        "of those modules that are to stay in evaluation mode"
    )


def ask_loss(first: FirstBatch) -> None:
    """Warn of a loss that is not, of a whole batch, what it is of its microbatches together.

    One that reads weights of the user's model, or what a forward sets there, raises ValueError.
    One that cannot be copied, or that fails, is not asked: training will say what is wrong.
    """
    loss, batch = first.parts.loss, first.batch
    if not batch.sizes[0]:
        return
    if len(batch.sizes) == 1 and isinstance(loss, nn.Module) and is_pure(loss):
        _warn_of_turns(first, set())
        return
    target = batch.cut_target()[0]
    try:
        question = _LossQuestion(loss, first, target)
    except Exception:  # of whatever kind: it cannot be copied
        return
    with state_untouched(first.original):
        question.ask_first()
        _warn_of_turns(first, question.copies.shared)
        if question.copies.drew:
            return
        question.warn_of_tables()
        told = question.another_whole()
    if not told:
        return
    cut = ["the target"]
    if batch.said is not None:
        first_part = _entries(target)
        whole = _entries(batch.target).items()
        cut = [repr(name) for name, each in whole if first_part[name] is not each]
    warn_of_another_whole(told, cut)


class _LossQuestion:
    """Asks copies of a loss, and watches what they read of the user's model."""

    def __init__(self, loss: Loss, first: FirstBatch, target: Any) -> None:
        self._target = target  # of the first microbatch
        self._first, self._device = first, leaves(first.tried.output)[0].device
        self.copies = FunctionCopies(loss, users_models(first.original), self._device)
        self.dtype = first.dtype or torch.float32
        self.known: float | None = None  # the loss of that, unless it fails

    def value(self, output: Tree, target: Any) -> float | None:
        """Return the loss of some rows, or None if it fails."""
        dtype, tried = self._first.dtype, self._first.tried
        edited = [name for name, each in tried.edited_buffers.items() if each is not None]
        unread = OriginalUnread(self._first.original, edited, refusal_of_reading)
        there = to_device(copied((output, target)), self._device)
        try:
            with unread, torch.no_grad(), autocast(self._device, dtype):
                value = self.copies(*there)
                self.dtype = dtype or value.dtype
                return float(value)
        except Exception:  # of whatever kind
            if unread.refused:
                raise unread.refused from None
            return None

    def ask_first(self) -> None:
        """Ask for the loss of the first microbatch.

        ValueError says that it reads what a forward sets in modules: the user's never run.
        """
        tried = self._first.tried
        value = self.known = self.value(tried.output, self._target)
        if not tried.set_attributes:
            return
        named = [*module_names(self._first.original).items()]
        with state_untouched(self._first.original):
            for number, key, as_set in tried.set_attributes:
                vars(named[number][0])[key] = as_set
            other = self.value(tried.output, self._target)
        if other is not None and other != value and (other == other or value is None):
            keys = (f"{named[number][1]}.{key}" for number, key, _ in tried.set_attributes)
            raise ValueError(refusal_of_reading(f"reads {', '.join(keys)}, which a forward sets,"))

    def another_whole(self) -> str:
        """Return in words how the loss of a batch is not that of its microbatches, if known."""
        if self.known is None:
            return ""
        batch, outputs = self._first.batch, differentiable(self._first.tried.output)
        if all(tensor.dim() and len(tensor) == batch.sizes[0] for tensor in outputs):
            targets = [batch.target, *batch.cut_target()]
            rows_of = [batch.rows, *batch.sizes]
            cases = [*zip(_joined(self._first), targets, rows_of, strict=False)]
        else:
            cases = _whole_and_parts(self._first)
        values = list[tuple[float, int]]()
        for output, part, rows in cases:
            if (value := self.value(output, part)) is None:
                return ""
            values.append((value, rows))
        if not values:
            return ""
        loss = self._first.parts.loss
        return another_whole(loss, values[0], values[1:], cases[0][1], self.dtype)

    def warn_of_tables(self) -> None:
        """Warn of entries that are cut as rows, which the loss would take whole as well."""
        batch, value = self._first.batch, self.known
        if batch.said is None or len(batch.sizes) < 2:
            return
        taken, part = {*map(id, leaves(batch.input))}, _entries(self._target)
        for name, entry in _entries(batch.target).items():
            if name in batch.said or part[name] is entry or id(entry) in taken:
                continue
            one = part | {name: entry}
            is_dict = isinstance(self._target, dict)
            other = self.value(self._first.tried.output, one if is_dict else tuple(one.values()))
            if other is None:
                continue
            if value is None or abs(other - value) > 1e-3 * abs(value) + 1e-6:
                instead = "where it fails" if value is None else f"for {value:.4g}"
                warn(
                    f"the batch[{name!r}] has as many elements as the batch has rows, and is cut "
                    f"with them; the loss also takes it whole, and is then {other:.4g} {instead}: "
                    f"say Execution(rows={{{name!r}: True}}) if these are rows, False if they are "
                    f"not"
                )


def _entries(batch: Any) -> dict[Any, Any]:
    """Return the entries of a dict or a tuple by their names or places."""
    return dict(batch) if isinstance(batch, Mapping) else dict(enumerate(batch))


def _warn_of_turns(first: FirstBatch, by_loss: Set[str]) -> None:
    """Warn of random numbers that two workers draw from one generator."""
    balance = first.parts.model.balance or ()
    if min(len(first.parts.devices), len(balance)) < 2:
        return
    for name in sorted({*first.drawn, *by_loss, *first.tried.drawn}):
        layers, stage_of = first.tried.drawn.get(name, ()), stage_of_layers(balance)
        who = {stage_of[layer]: f"layer {layer}" for layer in layers}
        who |= {len(balance) - 1: "the loss"} if name in by_loss else {}
        told = [*(["the data"] if name in first.drawn else []), *who.values()]
        if len(told) > 1:
            warn(
                f"{told[0]} and {told[-1]} both draw from {name}'s generator, in threads that take "
                f"turns in no fixed order, so that equal runs differ: give the data one of its "
                f"own, np.random.default_rng(seed) or random.Random(seed), and let layers and "
                f"losses draw by torch"
            )


def _joined(first: FirstBatch) -> list[Tree]:
    """Return outputs of all rows, then of each microbatch, those of the first in place of all.

    There are none of a single microbatch, or if they are too large.
    """
    (rows, *others), total, output = first.batch.sizes, first.batch.rows, first.tried.output
    if not any(others) or tree_bytes(output) * total > MOST_BYTES * rows:
        return []
    joined = tree_map(lambda tensor: _repeated(tensor, rows, total), output)
    return [joined, *split(joined, part_sizes(total, 1 + len(others)))]


def _whole_and_parts(first: FirstBatch) -> list[tuple[Tree, Any, int]]:
    """Return output, target and rows of two microbatches together, then of each.

    An output without rows, such as a loss that the model itself computes, is known only by running
    the model.
    """
    batch = first.batch
    sizes = [rows for rows in batch.sizes[:2] if rows]
    some = sum(sizes)
    if len(sizes) < 2 or tree_bytes(first.tried.output) * some > MOST_BYTES * sizes[0]:
        return []
    inputs = batch.cut_input()[:2]
    both = tree_map(lambda t: t[:some] if t.dim() and len(t) == batch.rows else t, batch.input)
    whole = batch.target
    if some < batch.rows:
        whole = batch.cut_target([some, batch.rows - some])[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it edits was said
            outputs = [first.evaluate(rows).output for rows in (both, *inputs)]
    except Exception:  # of whatever kind: some models want targets or many rows
        return []
    return list(zip(outputs, [whole, *batch.cut_target()[:2]], [some, *sizes], strict=True))


def _repeated(tensor: Tensor, rows: int, wanted: int) -> Tensor:
    """Return so many rows, by repeating those that there are; what has no rows stays."""
    if not tensor.dim() or len(tensor) != rows:
        return tensor
    times = -(-wanted // rows)
    if not tensor.is_floating_point():
        return torch.cat([tensor] * times)[:wanted]
    # Each time smaller, so that microbatches differ; probabilities and boxes stay such.
    return torch.cat([tensor * (1 - part / (2 * times)) for part in range(times)])[:wanted]
