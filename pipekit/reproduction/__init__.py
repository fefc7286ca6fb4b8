"""Running experiments in batches, and what they say about the papers' claims."""

from pipekit.reproduction import claims as claims
