"""Sums over workers: of gradients, running statistics and shared weights, in a fixed order."""
