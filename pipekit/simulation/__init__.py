"""Seconds and bytes from a schedule and a profile: events computed, nothing run."""

from pipekit.simulation.alone import Host
from pipekit.simulation.costs import Costs, Shards
from pipekit.simulation.long_run import LongRun, long_run
from pipekit.simulation.simulate import simulate

__all__ = ["Costs", "Host", "LongRun", "Shards", "long_run", "simulate"]
