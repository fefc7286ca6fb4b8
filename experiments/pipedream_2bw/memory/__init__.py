"""Figures 7 and 9 of PipeDream-2BW, and the memory formulas of section 3."""
