"""Where the published measurements are, of which pipekit has none itself."""

import os
from pathlib import Path

FOLDER = "PIPEKIT_MEASURED"
"""The environment variable that names their folder."""


def measurements() -> Path | None:
    """Return the folder of measurements that the environment names; None: there is none."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else None
