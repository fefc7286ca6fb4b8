"""Schedules found for given costs: a greedy construction, then local search."""

from pipekit.searching.search import search

__all__ = ["search"]
