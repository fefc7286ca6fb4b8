"""Figures 2, 3, 4 and 8 of PipeDream: its timelines, and what the text says of them."""
