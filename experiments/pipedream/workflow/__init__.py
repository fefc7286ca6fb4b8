"""Figures 6 and 7 of PipeDream, and the planner of section 3.2."""
