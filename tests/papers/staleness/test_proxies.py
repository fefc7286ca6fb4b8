"""The proxies: as large as they say, cut anywhere, and repeatable."""

from itertools import accumulate, pairwise

import pytest
import torch

from pipekit.papers.staleness.optimizers import MuonAndAdamW
from pipekit.papers.staleness.proxies import PARTS, PROXIES, Proxy

SMALL = [proxy for proxy in PROXIES.values() if proxy.size != "large"]


@pytest.mark.parametrize("proxy", PROXIES.values(), ids=lambda proxy: proxy.name)
def test_each_stage_has_weights_at_each_depth(proxy: Proxy) -> None:
    with torch.device("meta"):
        model = proxy.build(seed=0)
    for stages in range(1, PARTS + 1):
        balance = proxy.balance(stages)
        assert sum(balance) == len(model)
        stops = [*accumulate(balance)]
        for start, stop in pairwise([0, *stops]):
            assert list(model[start:stop].parameters())
    with pytest.raises(ValueError, match="use 1 to 8 stages, not 9"):
        proxy.balance(9)


def test_the_large_language_models_have_five_to_ten_million_parameters() -> None:
    for name in ("gpt-large", "bert-large"):
        with torch.device("meta"):
            model = PROXIES[name].build(seed=0)
        assert 5e6 < sum(p.numel() for p in model.parameters()) < 10e6


@pytest.mark.parametrize("proxy", SMALL, ids=lambda proxy: proxy.name)
def test_hidden_matrices_are_muons_and_ends_are_not(proxy: Proxy) -> None:
    model = proxy.build(seed=0)
    muon, adamw = MuonAndAdamW(list(model.parameters()), 0.01, proxy.ends).param_groups
    assert all(p.dim() == 2 and p.shape[0] % proxy.width == 0 for p in muon["params"])
    ends = {id(p) for layer in (model[0], model[-1]) for p in layer.parameters()}
    assert ends <= {id(p) for p in adamw["params"]}
    blocks = {"gpt": 4 * 6, "bert": 4 * 6 + 1, "images": 3}
    assert len(muon["params"]) == blocks[proxy.kind]
