"""Throughput, and what recomputation costs: sections 2.1, 4.2.1 and 4.2.3, Tables 2 and 4."""
