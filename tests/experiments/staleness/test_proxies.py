"""The proxies: as large as they say, cut anywhere, and repeatable."""

from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image

from experiments.staleness.methods import MuonAndAdamW
from experiments.staleness.proxies import PARTS, PROXIES, Proxy, of_setting
from experiments.staleness.sweep import Sweep
from experiments.staleness.trainings import StaleTraining, train

OURS = [proxy for proxy in PROXIES.values() if not proxy.is_own]
SMALL = [proxy for proxy in OURS if proxy.size in ("small", "long")]


def test_a_setting_tells_trainings_of_other_lengths_apart() -> None:
    large = PROXIES["gpt-large"]
    short = replace(large, updates=200)
    assert (large.setting, short.setting) == ("gpt-large", "gpt-large-200")
    assert of_setting("gpt-large") == large
    assert of_setting("gpt-large-200") == short
    with pytest.raises(ValueError, match="proxy must be one of"):
        of_setting("gpt-200")
    assert short.description == "7,603,200 parameters, 200 updates, 409,600 bytes seen"
    assert of_setting("images-folder-50").description == "50 updates, 3,200 images seen"


@pytest.mark.parametrize("proxy", OURS, ids=lambda proxy: proxy.name)
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


def test_the_huge_one_has_fifty_to_150_million_parameters() -> None:
    assert 50e6 < PROXIES["gpt-huge"].parameters < 150e6


def test_images_of_ones_own_are_learnt_from(tmp_path: Path) -> None:
    for number, name in enumerate(("day", "night", "dusk")):
        (tmp_path / name).mkdir()
        for copy in range(5):
            Image.new("RGB", (8, 8), (80 * number, 0, 9)).save(tmp_path / name / f"{copy}.png")
    part = Sweep.of("images-folder", "adamw", "2bw", updates=2, folder=str(tmp_path))
    proxy = replace(part.proxy, width=2, length=8, batch_rows=4)
    assert (proxy.name, proxy.classes) == ("images-folder", 3)
    assert proxy.ends == {3}
    record = train(StaleTraining(proxy, "2bw", 2, "adamw", 0.01, seed=0))
    assert record.points["updates"][-1] == 2
    assert record.provenance["data"] == str(tmp_path)


def test_images_of_ones_own_need_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name their folder in the parameter `folder`"):
        Sweep.of("images-folder", "adamw", "2bw")
    with pytest.raises(ValueError, match="has no images that can be read"):
        Sweep.of("images-folder", "adamw", "2bw", folder=str(tmp_path))


@pytest.mark.parametrize("proxy", SMALL, ids=lambda proxy: proxy.name)
def test_hidden_matrices_are_muons_and_ends_are_not(proxy: Proxy) -> None:
    model = proxy.build(seed=0)
    muon, adamw = MuonAndAdamW(list(model.parameters()), 0.01, proxy.ends).param_groups
    assert all(p.dim() == 2 and p.shape[0] % proxy.width == 0 for p in muon["params"])
    ends = {id(p) for layer in (model[0], model[-1]) for p in layer.parameters()}
    assert ends <= {id(p) for p in adamw["params"]}
    blocks = {"gpt": 4 * 6, "bert": 4 * 6 + 1, "images": 3}
    assert len(muon["params"]) == blocks[proxy.kind]
