"""The papers' weight updates, carried out slowly: the judge of the engine.

One process, one thread, a list of all past weights, and the update equations.  Nothing here knows
schedules, workers or transports: a pipeline method is only the version of the weights that each
stage reads (:mod:`pipekit.oracle.versions`).  What papers do about stale weights besides is in
:mod:`pipekit.oracle.mitigation_equations`.
"""

from pipekit.oracle.train import OracleRun, train

__all__ = ["OracleRun", "train"]
