"""The user's adapter: three methods around a trainer; and one process that trains through it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from pipekit.parity.launch import tell
from pipekit.parity.plain_loop import LEARNING_RATE, SEED, Tensors
from pipekit.parity.suite import SUITE, Batch
from pipekit.references import load

STEPS = 6  # batches: gradients that are stale by four updates are told from those by five


class Adapter(Protocol):
    """A trainer as the judge sees it; one is made in each process."""

    def build(
        self, model: nn.Sequential, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    ) -> None:
        """Take the model, with the judge's weights, and a function that makes a plain SGD."""

    def step(self, batch: Batch) -> float | None:
        """Train on one whole batch, update once, and return the loss where this rank has it."""

    def parameters(self) -> Mapping[str, Tensor]:
        """Return what this rank holds, by the model's names; buffers may be among it."""


class Stated(BaseModel):
    """What an adapter may state by attributes of these names."""

    model_config = ConfigDict(frozen=True, from_attributes=True)
    # Microbatches of a batch; without them all divisors of the rows are tried.
    microbatches: StrictInt | None = Field(None, ge=1, le=1024)
    stages: StrictInt | None = Field(None, ge=1)  # of the pipeline; without it the ranks count
    balance: tuple[StrictInt, ...] | None = None  # how many of the model's layers each stage has
    stale: StrictInt = Field(0, ge=0, le=99)  # the most updates that gradients are behind by design
    lower_precision: bool = Field(False, strict=True)  # whether two bytes a number are meant
    clip_norm: StrictFloat | None = Field(None, gt=0)  # of all gradients, to which it clips

    @classmethod
    def by(cls, adapter: Any, layers: int) -> "Stated":
        """Return what an adapter states of a model; ValueError for what cannot be so."""
        try:
            stated = cls.model_validate(adapter)
        except ValidationError as error:
            wrong = error.errors()[0]
            name, said = wrong["loc"][0], wrong["msg"].lower()
            raise ValueError(f"the adapter's {name} is {wrong['input']!r}: {said}") from None
        stages, balance = stated.stages, stated.balance
        if (stages or 1) > layers:
            raise ValueError(f"the adapter's stages are {stages}: the layers are {layers}")
        if balance is not None and sum(balance) != layers:
            raise ValueError(
                f"the adapter's balance is {balance}: let it add up to {layers} layers"
            )
        return stated.model_copy(update={"stages": stages if balance is None else len(balance)})


@dataclass
class RankRecord:
    """What one rank states, and what it had of each step."""

    stated: Stated
    parameters: list[Tensors] = field(default_factory=list)  # after 0, 1, 2, ... updates
    gradients: list[Tensors] | None = None
    losses: list[float | None] = field(default_factory=list)


def train(adapter: str | Callable[[], Any], model: str, seed: int = SEED) -> RankRecord:
    """Return what this process's adapter, a reference or a class, does on a model of the suite.

    Each step draws random numbers from ``seed`` on.  A TypeError or ValueError says what the
    adapter returns that the model could not have.
    """
    tell("loading the adapter")
    case = SUITE[model]
    made: Any = (load(adapter) if isinstance(adapter, str) else adapter)()
    tell("build()")
    torch.manual_seed(seed)
    own = case.model()
    known = dict(own.state_dict())
    trained = {n for n, p in own.named_parameters(remove_duplicate=False) if p.requires_grad}
    made.build(own, partial(torch.optim.SGD, lr=LEARNING_RATE))
    record = RankRecord(Stated.by(made, len(own)))
    try:
        record.parameters.append(_tensors("parameters()", made.parameters(), known, 0))
    except Exception:  # it is asked for them after a step only, by its contract
        record.parameters.append({})
    if hasattr(made, "gradients"):
        record.gradients = []
    for step, batch in enumerate(case.batches(STEPS, record.stated.microbatches)):
        tell(f"step() of batch {step + 1}")
        torch.manual_seed(seed + step)
        loss = made.step(batch)
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        try:
            record.losses.append(None if loss is None else float(loss))
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"step() returns {loss!r}: return the batch's mean loss as a number, or None"
            ) from None
        tell(f"parameters() after batch {step + 1}")
        held = _tensors("parameters()", made.parameters(), known, step + 1)
        record.parameters.append(held)
        if record.gradients is not None:
            record.gradients.append(_tensors("gradients()", made.gradients(), known, step + 1))
            if missing := sorted(trained & held.keys() - record.gradients[-1].keys()):
                raise ValueError(
                    f"gradients() has none for {missing[0]!r}, which its parameters() has: return "
                    f"it before it is cleared, or leave out the method gradients()"
                )
    return record


def _tensors(source: str, found: Any, known: Tensors, update: int) -> Tensors:
    if not isinstance(found, Mapping):
        raise TypeError(f"{source} returns {type(found).__name__}: return a dict of tensors")
    copies = {name: _copied(source, name, tensor, known) for name, tensor in found.items()}
    for name, tensor in copies.items() if update == 1 else ():
        if not tensor.isfinite().all():
            raise ValueError(
                f"{source} has NaN or infinity in {name!r} after the first update: mend that first"
            )
    return copies


def _copied(source: str, name: str, tensor: Any, known: Tensors) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.is_meta:
        found = "the device 'meta'" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{source} has {found} for {name!r}: return tensors of numbers")
    if name not in known:
        close = get_close_matches(str(name), known, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{source} has {name!r}, and the model no such parameter{meant}")
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()  # of ranks that have a shard each
    own = known[name]
    if tensor.shape != own.shape:
        raise ValueError(
            f"{source} has {name!r} with the shape {list(tensor.shape)}, and the model's is "
            f"{list(own.shape)}: return whole tensors"
        )
    copy: Tensor = tensor.detach().cpu().to_dense().clone()
    return copy
