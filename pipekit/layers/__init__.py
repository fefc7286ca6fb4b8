"""How one layer is run: its random numbers, buffers, mixed precision, and the pass it is in."""
