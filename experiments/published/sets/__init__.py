"""All sets of published trainings, by name: the class of their rows."""

from experiments.published.published_set import Row
from experiments.published.sets.hf_playbook import PlaybookRow
from experiments.published.sets.megatron_core import BridgeRow, GPT3Row, Llama405BRow
from experiments.published.sets.megatron_deepspeed import BigScienceRow, MultiNodeRow, SingleNodeRow
from experiments.published.sets.parcae import ParcaeRow
from experiments.published.sets.sailor import SailorRow
from experiments.published.sets.simumax import SimumaxRow

_ALL: tuple[type[Row], ...] = (
    *(SingleNodeRow, MultiNodeRow, BridgeRow, Llama405BRow, GPT3Row),
    *(BigScienceRow, ParcaeRow, SailorRow, SimumaxRow, PlaybookRow),
)
SETS = {each.name: each for each in _ALL}
