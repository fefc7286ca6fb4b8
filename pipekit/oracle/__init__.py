"""The papers' weight updates, carried out slowly: the judge of the engine.

Nothing here knows schedules, workers or transports: a pipeline method is only the version of the
weights that each stage reads (:mod:`pipekit.oracle.versions`).
"""

from pipekit.oracle.train import OracleRun as OracleRun
from pipekit.oracle.train import train as train
