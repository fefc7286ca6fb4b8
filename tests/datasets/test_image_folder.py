"""Images of one's own: CIFAR-10's files, ImageNet's folders, or a folder a class."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10

from pipekit.datasets import image_folder

COLOURS = {"cat": (255, 0, 0), "dog": (0, 0, 255)}


def painted(folder: Path, each: int) -> None:
    """Write images of 20x12 pixels, red cats and blue dogs, with green ends on both sides."""
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            image = Image.new("RGB", (20, 12), (0, 255, 0))
            image.paste(colour, (4, 0, 16, 12))
            image.save(folder / name / f"{number}.png")


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10's files with three images each, of the class that fills them."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def written(name: str, content: dict[str, object]) -> list[str]:
        raw = pickle.dumps(content)
        (folder / name).write_bytes(raw)
        return [name, hashlib.md5(raw).hexdigest()]

    def batch(name: str) -> list[str]:
        labels = [0, 4, 9]
        data = np.repeat(np.array(labels, dtype=np.uint8)[:, None], 3 * 32 * 32, axis=1)
        return written(name, {"data": data, "labels": labels})

    names = [f"data_batch_{number}" for number in range(1, 6)]
    monkeypatch.setattr(CIFAR10, "train_list", [batch(name) for name in names])
    monkeypatch.setattr(CIFAR10, "test_list", [batch("test_batch")])
    meta, md5 = written("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": meta, "key": "label_names", "md5": md5})
    return folder


def test_cifar_10(cifar: Path) -> None:
    for path in (cifar, cifar.parent):
        data = image_folder(path)
        assert data.train_inputs.shape == (15, 3, 32, 32)
        assert sorted(data.test_targets.tolist()) == [0, 4, 9]
        filled = (data.train_inputs * 255).round()
        assert torch.equal(filled, data.train_targets[:, None, None, None].expand_as(filled))
    (image, _), *_ = data.batches(5)
    assert image.shape == (5, 3, 32, 32)


def test_imagenets_layout(tmp_path: Path) -> None:
    painted(tmp_path / "train", 3)
    painted(tmp_path / "val", 1)
    data = image_folder(tmp_path, pixels=6)
    assert data.train_inputs.shape == (6, 3, 6, 6)
    assert sorted(data.test_targets.tolist()) == [0, 1]
    for image, target in zip(data.train_inputs, data.train_targets, strict=True):
        colour = torch.tensor([*COLOURS.values()][target]) / 255
        assert torch.allclose(image, colour[:, None, None].expand(3, 6, 6)), "the middle, scaled"


def test_a_folder_a_class_is_divided_and_may_be_limited(tmp_path: Path) -> None:
    painted(tmp_path, 10)
    data = image_folder(tmp_path, pixels=4)
    assert (len(data.train_inputs), len(data.test_inputs)) == (16, 4)
    few = image_folder(tmp_path, pixels=4, most=5)
    assert (len(few.train_inputs), len(few.test_inputs)) == (5, 1)


def test_other_folders_are_refused_with_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no images .*unpack cifar-10-python.tar.gz there"):
        image_folder(tmp_path)
    with pytest.raises(ValueError, match="or a folder a class"):
        image_folder(tmp_path / "nowhere")
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(ValueError, match="no images that can be read"):
        image_folder(tmp_path)
