"""Seconds and bytes from a schedule and a profile: events computed, nothing run."""

from pipekit.simulation.alone import Host as Host
from pipekit.simulation.costs import Costs as Costs
from pipekit.simulation.costs import Shards as Shards
from pipekit.simulation.long_run import LongRun as LongRun
from pipekit.simulation.long_run import long_run as long_run
from pipekit.simulation.simulate import simulate as simulate
