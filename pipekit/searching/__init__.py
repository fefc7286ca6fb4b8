"""Schedules found for given costs: policies, then local search on the critical path."""

from pipekit.searching.search import Searched, search

__all__ = ["Searched", "search"]
