"""Questions to the user's optimizer before training, asked of copies of it."""

from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn

from pipekit.devices import CPU
from pipekit.engine.runs.model_stages import ModelStages
from pipekit.engine.runs.users_model import users_models
from pipekit.engine.updates.weight_versions import NeedsClosure, OptimizerFactory
from pipekit.host.user_frames import warn
from pipekit.layers.module_state import trained
from pipekit.layers.user_functions import FunctionCopies


def ask_optimizer(optimizer: OptimizerFactory, model: ModelStages) -> None:
    """Warn of an optimizer that is another one for each stage.

    One that cannot be copied or that fails is not asked; ValueError: its step needs a closure.
    """
    if any(each.updates.groups for each in model.configs):
        make, optimizer = optimizer, lambda parameters: make([{"params": parameters}])
    _require_no_own_parameters(optimizer, model)
    try:
        question = FunctionCopies(partial(_stepped, optimizer), [], CPU)
        alone, together = question(), question(True)
    except NeedsClosure:
        raise
    except Exception:  # of whatever kind
        return
    if sum(bool(trained(each.module)) for each in model.configs) < 2:
        return
    if question.drew_shared:
        warn(
            "the optimizer draws random numbers from a generator that all threads share, in which "
            "stages take turns in no fixed order, so that equal runs differ: let it make one of "
            "its own, torch.Generator().manual_seed(seed)"
        )
    elif not (question.drew or torch.allclose(alone, together, 1e-3, 1e-6, equal_nan=True)):
        warn(
            "the optimizer has a step of a parameter that depends on all of its parameters, as by "
            "a norm over their gradients, and each stage has an optimizer with its own parameters "
            "alone: training differs from that by one optimizer for the whole model. Clip by "
            "updates=Updates(clip_norm=...), which takes the norm over all stages, or use one stage"
        )


def _require_no_own_parameters(optimizer: OptimizerFactory, model: ModelStages) -> None:
    """Raise ValueError if an optimizer's function chooses parameters by what the user's model has.

    Stages train copies, of which it would take none, or all into one group.
    """
    own = [each for each in model.original.parameters() if each.requires_grad]
    try:
        grouped = FunctionCopies(partial(_grouped, optimizer), users_models(model.original), CPU)
        known = grouped(own)
    except Exception:  # of whatever kind
        return
    try:
        of_copies = grouped([nn.Parameter(each.detach()) for each in own])
    except Exception:  # it has no name for a copy, say, or no group
        of_copies = None
    if known != of_copies:
        raise ValueError(
            "the optimizer's function chooses among the parameters of the model that the pipeline "
            "was given, and stages train copies of these: choose by name or shape, "
            "updates=Updates(groups=lambda name, parameter: {...}), and freeze what is not to be "
            "trained, requires_grad_(False)"
        )


def _grouped(optimizer: OptimizerFactory, parameters: list[nn.Parameter]) -> list[list[int]]:
    """Return the places of the parameters in each group of their optimizer."""
    places = {id(each): place for place, each in enumerate(parameters)}
    groups = optimizer(parameters).param_groups
    return [[places[id(each)] for each in group["params"]] for group in groups]


def _stepped(optimizer: OptimizerFactory, together: bool = False) -> Tensor:
    """Return weights and biases of two layers after three steps of an optimizer each, or of one."""
    layers = [[torch.linspace(-1, n, 16).reshape(4, 4), torch.linspace(n, -1, 4)] for n in (1, 2)]
    parameters = [[nn.Parameter(each) for each in layer] for layer in layers]

    def gradients(step: int) -> float:
        # Those of one layer grow, and of the other shrink: Adam forgets a factor that stays.
        for layer, base in zip(parameters, (4.0, 0.25), strict=True):
            for each in layer:
                each.grad = each.detach().cos() * base**step
        return parameters[0][0].sum().item()

    for some in [[*chain(*parameters)]] if together else parameters:
        stepper = optimizer(some)
        for step in range(3):
            gradients(step)
            try:
                stepper.step()
            except Exception as error:
                stepper.step(partial(gradients, step))  # else it is not for want of one
                raise NeedsClosure.of(stepper) from error
    return torch.cat([parameter.detach().flatten() for parameter in chain(*parameters)])
