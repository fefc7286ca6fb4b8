"""The report: every claim of the papers beside what we found, as one file for any browser."""

from pipekit.ledger.report.page import destination, write
from pipekit.ledger.report.scoreboard import scoreboard

__all__ = ["destination", "scoreboard", "write"]
