"""Section 3.4 of PipeDream: which weights a minibatch sees, and what is kept how long."""
