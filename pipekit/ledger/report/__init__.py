"""The report: every claim of the papers beside what we found, as one file for any browser."""

from pipekit.ledger.report.page import destination, write
from pipekit.ledger.report.scoreboard import scoreboard
from pipekit.ledger.report.tables import frame

__all__ = ["destination", "frame", "scoreboard", "write"]
