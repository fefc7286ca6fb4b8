"""Weight versions, sums of gradients, and what an update needs of other workers."""
