"""Schedules found for given costs: policies, local search, and proofs for small ones."""

from pipekit.searching.optimal import Optimum, optimal
from pipekit.searching.search import search
from pipekit.searching.tradeoff import Tradeoff, tradeoff

__all__ = ["Optimum", "Tradeoff", "optimal", "search", "tradeoff"]
