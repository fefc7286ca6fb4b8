"""What delayed gradients cost, measured on small networks: a sweep, and what it shows."""
