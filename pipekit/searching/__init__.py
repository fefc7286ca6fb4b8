"""Schedules found for given costs: policies, then local search on the critical path."""

from pipekit.searching.search import Searched as Searched
from pipekit.searching.search import search as search
