"""Running experiments in batches, and what they say about the papers' claims."""
