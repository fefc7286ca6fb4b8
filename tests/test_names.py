"""One list of each kind of names, which says where to find what they name."""

import subprocess
import sys
from typing import Any

import pytest

from pipekit.names import CLUSTERS, METHODS, MITIGATIONS, TRANSPORTS, Names

KINDS: dict[str, Names[Any]] = {
    each.kind: each for each in (METHODS, CLUSTERS, MITIGATIONS, TRANSPORTS)
}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_named_is_there(kind: str) -> None:
    assert all(callable(place.load()) for place in KINDS[kind].values())


def test_a_wrong_name_is_refused_with_the_closest() -> None:
    with pytest.raises(ValueError, match=r"method must be one of gpipe, .*'gpip'; did you mean"):
        METHODS.require("gpip")


def test_names_are_listed_without_what_they_name() -> None:
    code = "import sys, pipekit.names as n; print(str(n.METHODS)[:12], 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "gpipe, flush False"
