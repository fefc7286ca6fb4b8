"""Seconds and bytes from a schedule and a profile: events computed, nothing run."""

from pipekit.simulation.simulate import simulate

__all__ = ["simulate"]
