"""What GPipe's notebooks compute (Huang et al., "GPipe", 2019): a folder a notebook.

Letters are the paper's: K partitions, here called stages, one accelerator each; T microbatches of a
minibatch of N rows; L layers, in AmoebaNet-D (L, F) the normal cells of one of its three groups;
F filters.  Arguments ``stages`` and ``microbatches`` are K and T.  ``findings`` are the values of
the paper's claims; ``picture`` is the name of the figure that shows them.
"""
