"""Figures 10 to 12 of PipeDream: epochs to an accuracy times hours an epoch."""
