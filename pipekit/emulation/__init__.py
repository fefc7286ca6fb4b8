"""Modelled compute on the real engine."""

from pipekit.emulation.emulate import emulate

__all__ = ["emulate"]
