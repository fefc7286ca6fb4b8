"""Checkpoints without draining the pipeline."""
