"""All sets of published trainings, by name."""

from experiments.published.published_set import AnySet
from experiments.published.sets import (
    bigscience,
    hf_playbook,
    megatron_core,
    parcae,
    sailor,
    simumax,
    vtrain,
)
from pipekit.choices import require_choice

_ALL: tuple[AnySet, ...] = (
    vtrain.SINGLE_NODE,
    vtrain.MULTI_NODE,
    megatron_core.BRIDGE,
    megatron_core.LLAMA_405B,
    megatron_core.GPT3,
    bigscience.BIGSCIENCE,
    parcae.PARCAE,
    sailor.SAILOR,
    simumax.SIMUMAX,
    hf_playbook.HF_PLAYBOOK,
)
SETS = {each.name: each for each in _ALL}


def named(name: str) -> AnySet:
    """Return a set; ValueError has the closest name."""
    require_choice("set", name, SETS)
    return SETS[name]
