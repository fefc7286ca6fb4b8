"""A pipelined module for training loops of the user's own."""
