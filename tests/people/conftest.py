"""What tests of what people bring share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _the_same_random_numbers() -> None:
    torch.manual_seed(0)
