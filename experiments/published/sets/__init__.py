"""All sets of published trainings, by name."""

from experiments.published.sets.hf_playbook import HF_PLAYBOOK
from experiments.published.sets.megatron_core import BRIDGE, GPT3, LLAMA_405B
from experiments.published.sets.megatron_deepspeed import BIGSCIENCE, MULTI_NODE, SINGLE_NODE
from experiments.published.sets.parcae import PARCAE
from experiments.published.sets.sailor import SAILOR
from experiments.published.sets.simumax import SIMUMAX

_ALL = (
    *(SINGLE_NODE, MULTI_NODE, BRIDGE, LLAMA_405B, GPT3),
    *(BIGSCIENCE, PARCAE, SAILOR, SIMUMAX, HF_PLAYBOOK),
)
SETS = {each.name: each for each in _ALL}
