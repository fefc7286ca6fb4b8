"""The report: every claim of the papers beside what we found, as one file for any browser."""

from pipekit.ledger.report.page import destination as destination
from pipekit.ledger.report.page import write as write
from pipekit.ledger.report.scoreboard import scoreboard as scoreboard
