"""Modelled compute on the real engine."""

from pipekit.emulation.emulate import emulate as emulate
from pipekit.emulation.measured_host import measured_host as measured_host
