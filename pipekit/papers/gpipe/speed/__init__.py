"""Throughput: section 4.2, Figures 3 and 4."""
