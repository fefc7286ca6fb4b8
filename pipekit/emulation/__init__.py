"""Modelled compute on the real engine."""

from pipekit.emulation.emulate import emulate
from pipekit.emulation.measured_host import measured_host

__all__ = ["emulate", "measured_host"]
