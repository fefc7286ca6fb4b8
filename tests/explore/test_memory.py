from typing import Any

from pipekit.explore.memory import CUTS, DEVICES, see
from pipekit.explore.page.view import Timeline

MODEL: dict[str, Any] = {"model": "gpt-355M", "microbatches": 4}


def seen(**setting: Any) -> Timeline:
    (timeline,) = see(**{**MODEL, **setting}).timelines
    return timeline


def test_the_title_says_whether_it_fits_the_device() -> None:
    fits, full = (seen(rows=rows) for rows in (1, 64))
    assert fits.name == "gpt-355M by PipeDream-2BW fits the 16 GiB of a V100 16GB"
    assert "does not fit the 16 GiB of a V100 16GB (worker 0, worker 1" in full.name
    assert fits.capacity == DEVICES["V100 16GB"].memory_bytes
    assert fits.memory


def test_stages_may_be_of_equal_time_or_of_equal_size() -> None:
    texts = {see(by=by, **MODEL).text for by in CUTS}
    assert len(texts) == len(CUTS)
