import subprocess
import sys

import pytest
import torch

from pipekit.models import PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_take_their_samples(name: str) -> None:
    network = PUBLISHED[name]
    with torch.device("meta"):
        sample = network.sample(2)
    output = network.build(device="meta")(sample)
    assert output.is_meta
    assert output.shape[0] == 2


def test_importing_the_models_does_not_load_torchvision() -> None:
    code = "import sys, pipekit.models; assert 'torchvision' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
