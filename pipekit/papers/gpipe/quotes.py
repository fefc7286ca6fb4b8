"""What GPipe's Figure 1, Tables 2 and 3 and section 1 print, read from the ledger of claims.

Nothing here is ours: every number is the paper's, most of them quoted by it from others.
"""

import re

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.ledger.claims import load
from pipekit.papers.findings import Finding


def table2() -> pd.DataFrame:
    """Return Table 2: model, pixels, parameters (millions), top-1 and top-5 accuracy (%)."""
    rows = []
    for claim in load().values():
        if claim.id.startswith("gpipe-table2-"):
            parameters, top1, top5 = claim.value.split("; ")
            rows.append(
                {
                    "model": claim.id.removeprefix("gpipe-table2-"),
                    "pixels": claim.conditions.split(",")[0],
                    "parameters (M)": numbers(parameters)[0],
                    "top-1 (%)": float(top1),
                    "top-5 (%)": float(top5),
                    "label": "paper",
                }
            )
    return pd.DataFrame(rows)


def figure1() -> pd.DataFrame:
    """Return the points of Figure 1 that the text prints: Table 2, and GoogLeNet's of section 1.

    Columns as :func:`table2`'s.
    """
    googlenet = {
        "model": "googlenet",
        "parameters (M)": winners()[0],
        "top-1 (%)": numbers(load()["gpipe-intro-winners-acc"].value)[0],
        "label": "paper",
    }
    return pd.concat([pd.DataFrame([googlenet]), table2()], ignore_index=True)


def winners() -> tuple[float, float]:
    """Return the millions of parameters of ImageNet's winners in 2014 and 2017 (section 1)."""
    googlenet, senet = numbers(load()["gpipe-intro-36x-params"].conditions)
    return googlenet, senet


def accelerator_memory() -> tuple[float, float]:
    """Return the gigabytes of an accelerator in 2014 and 2018 (section 1)."""
    before, after = re.findall(r"(\d+)GB", load()["gpipe-intro-accelerator-memory"].claim)
    return float(before), float(after)


def table3() -> pd.DataFrame:
    """Return Table 3: images to train and test on, classes, accuracy and the earlier best (%)."""
    rows = []
    for claim in load().values():
        if claim.id.startswith("gpipe-table3-") and claim.quantity == "accuracy (prior)":
            accuracy, earlier = numbers(claim.value)
            train, test, classes, *_ = claim.conditions.split("classes ")[1].split("/")
            rows.append(
                {
                    "data": claim.id.removeprefix("gpipe-table3-"),
                    "train": int(numbers(train)[0]),
                    "test": int(numbers(test)[0]),
                    "classes": int(numbers(classes)[0]),
                    "accuracy (%)": accuracy,
                    "earlier best (%)": earlier,
                    "label": "paper",
                }
            )
    return pd.DataFrame(rows).set_index("data")


def size_and_accuracy() -> float:
    """Return the rank correlation of parameters and accuracy among the points of Figure 1."""
    points = figure1()
    return float(points["parameters (M)"].corr(points["top-1 (%)"], method="spearman"))


def draw_figure1() -> tuple[go.Figure, pd.DataFrame]:
    """Return Figure 1, accuracy over parameters, and its points."""
    points = figure1().sort_values("parameters (M)")
    points["source"] = "quoted"
    points.loc[points["model"].str.contains("amoebanet-b"), "source"] = (
        "AmoebaNet-B (6, 512), GPipe"
    )
    drawn = plots.points(
        points,
        x="parameters (M)",
        y="top-1 (%)",
        color="source",
        title="Figure 1: larger models are more accurate, rank correlation "
        f"{size_and_accuracy():.2f}",
        label="paper",
        x_title="parameters (millions)",
        y_title="ImageNet top-1 accuracy (%)",
    )
    return drawn, points


def findings(picture: str) -> list[Finding]:
    """Return the paper's claims that are arithmetic on its own numbers."""
    (googlenet, senet), (before, after), transfer = winners(), accelerator_memory(), table3()
    wins = int((transfer["accuracy (%)"] > transfer["earlier best (%)"]).sum())
    accuracies = [transfer.loc[name, "accuracy (%)"] for name in ("cifar10", "cifar100")]
    quotient = "quotient of the paper's own two numbers"
    return [
        Finding.exact(
            "gpipe-fig1-accuracy-vs-size",
            size_and_accuracy(),
            f"of the {len(figure1())} points that the text prints",
            picture,
        ),
        Finding.exact("gpipe-intro-36x-params", senet / googlenet, quotient),
        Finding.exact("gpipe-intro-accelerator-memory", after / before, quotient),
        Finding.exact("gpipe-table3-wins", wins),
        Finding.exact("gpipe-sec433-error-rates", [round(100 - a, 6) for a in accuracies]),
    ]


def numbers(text: str) -> list[float]:
    """Return the numbers in a text; commas separate thousands."""
    return [float(n) for n in re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d)", "", text))]
