"""torch's switches are read in one process and set in another."""

from collections.abc import Iterator

import pytest
import torch

from pipekit.host.numeric_settings import apply_settings, numeric_settings


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    torch.use_deterministic_algorithms(False)  # the first call adds to the environment
    before = numeric_settings()
    yield
    apply_settings(before)


def switched() -> None:
    """Turn what a script turns."""
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("medium")
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


def test_they_are_set_as_they_were_read() -> None:
    before = numeric_settings()
    switched()
    turned = numeric_settings()
    changed = [a != b for a, b in zip(before, turned, strict=True)]
    assert sum(changed) >= 6
    apply_settings(before)
    assert numeric_settings() == before
    apply_settings(turned)
    assert torch.get_default_dtype() == torch.float64
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.get_float32_matmul_precision() == "medium"
    assert not torch.backends.mha.get_fastpath_enabled()
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert not torch.backends.mkldnn.enabled


def test_a_precision_of_one_library_is_taken_over() -> None:
    """torch then refuses to tell the precision of all products as one."""
    before = numeric_settings()
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
    turned = numeric_settings()
    apply_settings(before)
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"  # type: ignore[attr-defined]
    apply_settings(turned)
    assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # type: ignore[attr-defined]
