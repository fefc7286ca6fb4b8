"""A pipelined module for training loops of the user's own, and the order of its backwards."""
