"""What GPipe's notebooks compute (Huang et al., "GPipe", 2019), where a cell is too short for it.

Letters are the paper's: K partitions, here called stages, one accelerator each; T microbatches of a
minibatch of N rows; L layers, in AmoebaNet-D (L, F) the normal cells of one of its three groups;
F filters.  Arguments ``stages`` and ``microbatches`` are K and T.
"""


def bubble(stages: int, microbatches: int) -> float:
    """Return GPipe's bubble fraction (K-1)/(T+K-1) (section 3.2)."""
    return (stages - 1) / (microbatches + stages - 1)
