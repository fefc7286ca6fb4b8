"""Losses of a model output: which one is meant, what it is a mean over, how it is scaled."""
