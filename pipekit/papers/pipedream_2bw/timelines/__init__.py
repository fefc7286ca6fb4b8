"""Figures 1 to 4 of PipeDream-2BW, and the update equations of section 3."""
