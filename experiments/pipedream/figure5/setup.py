"""The paper's set-up held against pipekit's data and presets (PipeDream, section 5.1)."""

import numpy as np
import pandas as pd
import torch
from torch.optim import SGD, RMSprop

from experiments.pipedream.settings import CLUSTER_A, CLUSTER_B, DATA, TRAININGS
from experiments.recorded.findings import Finding
from experiments.study.training import learning_rates
from pipekit.clusters import Cluster
from pipekit.clusters.papers import pipedream_a, pipedream_b
from pipekit.models import PUBLISHED


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
    same = all(
        isinstance(each, SGD) and (each.defaults["momentum"], each.defaults["lr"]) == (0.9, 0.01)
        for each in (sgd, other)
    )
    falls = isinstance(inception, RMSprop) and np.allclose(rates, decayed, rtol=0, atol=1e-12)
    epochs = "the learning rates of 20 epochs; RMSProp's other constants are not printed"
    rows = [TRAININGS[name].minibatch for name in ("vgg16", "inception-v3", "s2vt")]
    return [
        Finding.exact("pipedream-hparams-vgg16-s2vt", same),
        Finding.exact("pipedream-hparams-inception", falls, epochs),
        Finding.exact("pipedream-batch-sizes", rows),
    ]


def presets() -> list[Cluster]:
    """Return pipekit's presets for the paper's clusters A and B."""
    return [pipedream_a(), pipedream_b()]


def machine_findings() -> list[Finding]:
    """Return the data sets' sizes, and whether the clusters' presets are as printed."""
    images, videos = DATA["ILSVRC12"], DATA["MSVD"]
    vocabulary = PUBLISHED["s2vt"].build(device="meta")[-1].out_features
    sizes = [images.train, images.validation, images.classes]
    stand_in = f"as data; the classifiers have {images.classes} classes; random images stand in"
    words = "as data; the second is the vocabulary of our S2VT; random sequences stand in"
    unknown = (
        "GPU, its memory, nominal network; {0.cpu} and {0.ram_gb} GB of RAM are in no model of ours"
    ).format
    clusters = zip("ab", (CLUSTER_A, CLUSTER_B), presets(), strict=True)
    return [
        Finding.exact("pipedream-setup-ilsvrc12", sizes, stand_in),
        Finding.exact("pipedream-setup-msvd", [videos.train, vocabulary], words),
        *(
            Finding.simulated(f"pipedream-setup-cluster-{name}", its.are(ours), unknown(its))
            for name, its, ours in clusters
        ),
    ]
