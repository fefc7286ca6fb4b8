import pytest

from pipekit.host import cores
from pipekit.host.cores import workers_on_cores


@pytest.mark.parametrize(
    ("workers", "there", "said"),
    [
        (4, 2, "4 workers share 2 cores"),
        (2, 2, "2 workers have 2 cores"),
        (2, 1, "2 workers share 1 core"),
        (1, 8, "1 worker has 8 cores"),
    ],
)
def test_who_shares_is_said(
    workers: int, there: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: there)
    assert workers_on_cores(workers) == said
