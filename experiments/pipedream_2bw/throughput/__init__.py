"""Figures 6 and 8 of PipeDream-2BW: sequences a second."""
