"""Microbatches from both ends of the pipeline, and DualPipe folded into a V."""
