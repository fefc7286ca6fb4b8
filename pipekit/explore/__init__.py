"""Explorers for JupyterLab: move a slider, and the schedule, its timeline and its bytes follow."""
