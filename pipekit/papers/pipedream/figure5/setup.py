"""The paper's set-up held against pipekit's data and presets (PipeDream, section 5.1)."""

import pandas as pd
import torch

from pipekit.clusters import Cluster
from pipekit.clusters.papers import pipedream_a, pipedream_b
from pipekit.models import PUBLISHED
from pipekit.papers.findings import Finding
from pipekit.papers.pipedream.settings import CLUSTER_A, CLUSTER_B, DATA, TRAININGS
from pipekit.papers.training import learning_rates


def trainings() -> pd.DataFrame:
    """Return how each network was trained, a row a network."""
    return pd.DataFrame({name: vars(training) for name, training in TRAININGS.items()}).T


def training_findings() -> list[Finding]:
    """Return whether PyTorch's optimizers and schedulers are as section 5.1 prints them."""
    sgd, other, inception = (
        TRAININGS[name].optimizer([torch.nn.Parameter(torch.zeros(1))])
        for name in ("vgg16", "s2vt", "inception-v3")
    )
    decayed = [0.045 * 0.94 ** (epoch // 2) for epoch in range(20)]
    rates = learning_rates(inception, TRAININGS["inception-v3"].scheduler(inception), 20)
    return [
        Finding.exact(
            "pipedream-hparams-vgg16-s2vt",
            all(
                isinstance(optimizer, torch.optim.SGD)
                and optimizer.defaults["momentum"] == 0.9
                and optimizer.defaults["lr"] == 0.01
                for optimizer in (sgd, other)
            ),
        ),
        Finding.exact(
            "pipedream-hparams-inception",
            isinstance(inception, torch.optim.RMSprop)
            and all(
                abs(ours - theirs) < 1e-12 for ours, theirs in zip(rates, decayed, strict=True)
            ),
            "the learning rates of 20 epochs; RMSProp's other constants are not printed",
        ),
        Finding.exact(
            "pipedream-batch-sizes",
            [TRAININGS[name].minibatch for name in ("vgg16", "inception-v3", "s2vt")],
        ),
    ]


def presets() -> list[Cluster]:
    """Return pipekit's presets for the paper's clusters A and B."""
    return [pipedream_a(), pipedream_b()]


def machine_findings() -> list[Finding]:
    """Return the data sets' sizes, and whether the clusters' presets are as printed."""
    imagenet, msvd = DATA["ILSVRC12"], DATA["MSVD"]
    vocabulary = PUBLISHED["s2vt"].build(device="meta")[-1].out_features
    found = [
        Finding.exact(
            "pipedream-setup-ilsvrc12",
            [imagenet.train, imagenet.validation, imagenet.classes],
            f"as data; the classifiers have {imagenet.classes} classes; random images stand in",
        ),
        Finding.exact(
            "pipedream-setup-msvd",
            [msvd.train, vocabulary],
            "as data; the second is the vocabulary of our S2VT; random sequences stand in",
        ),
    ]
    for name, printed, preset in zip("ab", (CLUSTER_A, CLUSTER_B), presets(), strict=True):
        found.append(
            Finding.simulated(
                f"pipedream-setup-cluster-{name}",
                printed.are(preset),
                f"GPU, its memory, nominal network; {printed.cpu} and {printed.ram_gb} GB of RAM "
                "are in no model of ours",
            )
        )
    return found
