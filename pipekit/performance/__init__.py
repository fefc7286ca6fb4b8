"""Seconds and bytes of published trainings: model, layout and machine in, a step out; no torch."""
