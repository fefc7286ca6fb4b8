"""A recorded model's layers in the order that a plan has for them."""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from pipekit.partition.recorded.graph import in_order
from pipekit.partition.recorded.sequence import RecordedSequence
from pipekit.partition.recording.refusal import NotRecordable
from pipekit.partition.verify import verify
from pipekit.plans import Plan

_ADVICE = "plan with profile.as_chain(), which keeps the order that the layers have"


def in_plan_order(layers: nn.Sequential, plan: Plan) -> tuple[nn.Sequential, Plan]:
    """Return layers in the order of a plan, and the plan for them.

    Raises:
        ValueError: they cannot run in it (:func:`reordered`).
    """
    if not plan.order:
        return layers, plan
    return reordered(layers, plan.order), replace(plan, order=())


def reordered(layers: nn.Sequential, order: Sequence[int]) -> RecordedSequence:
    """Return the layers of a recorded model in another order in which they can run.

    They are compared with the unsplit model as :func:`pipekit.stages` compared them.

    Args:
        layers: what :func:`pipekit.stages` returned.
        order: the number that each layer has there, each once (:attr:`pipekit.Plan.order`).

    Raises:
        ValueError: the layers are no recorded model's, one would come before what it reads, or in
            this order they do not do the same to the bit: a tensor read by three layers, say, gets
            its gradient as a sum in the order of these.
    """
    origin = layers.origin if isinstance(layers, RecordedSequence) else None
    if origin is None or not isinstance(layers, RecordedSequence):
        raise ValueError(
            f"the plan has another order of the layers than the model, and only what "
            f"pipekit.stages returned, no copy or part of it, can be put into another: {_ADVICE}"
        )
    if sorted(order) != list(range(len(layers))):
        raise ValueError(f"an order of {len(layers)} layers names each of them once")
    place = {layer: number for number, layer in enumerate(order)}
    for value in layers.passed:
        first = min(value.users, key=place.__getitem__)
        if value.source is not None and place[first] < place[value.source]:
            raise ValueError(
                f"layer {first} reads what layer {value.source} makes: let that be first"
            )
    recorded = in_order(origin.recorded, order)
    try:
        return RecordedSequence.of(recorded, verify(recorded))
    except NotRecordable as error:
        raise ValueError(f"in the order of the plan, {error}; or {_ADVICE}") from error
    except KeyError as error:  # of a value, or a size of the batch
        raise ValueError(f"a layer has not all that it needs in this order: {_ADVICE}") from error
