"""What GPipe's Figure 1, Tables 2 and 3 and section 1 print, read from the ledger of claims.

Nothing here is ours: every number is the paper's, most of them quoted by it from others.
"""

import re

import pandas as pd
import plotly.graph_objects as go

from pipekit import plots
from pipekit.ledger.claims import load
from pipekit.papers.findings import Finding


def numbers(text: str) -> list[float]:
    """Return the numbers in a text; commas separate thousands."""
    return [float(n) for n in re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d)", "", text))]


def table2() -> pd.DataFrame:
    """Return Table 2: model, pixels, parameters (millions), top-1 and top-5 accuracy (%)."""
    claims = {key: claim for key, claim in load().items() if key.startswith("gpipe-table2-")}
    frame = pd.DataFrame(
        [numbers(claim.value) for claim in claims.values()],
        columns=["parameters (M)", "top-1 (%)", "top-5 (%)"],
    )
    frame.insert(0, "model", [key.removeprefix("gpipe-table2-") for key in claims])
    frame.insert(1, "pixels", [claim.conditions.split(",")[0] for claim in claims.values()])
    return frame.assign(label="paper")


def figure1() -> pd.DataFrame:
    """Return the points of Figure 1 that the text prints: Table 2, and GoogLeNet's of section 1.

    Columns as :func:`table2`'s.
    """
    googlenet = {
        "model": "googlenet",
        "parameters (M)": numbers(load()["gpipe-intro-36x-params"].conditions)[0],
        "top-1 (%)": numbers(load()["gpipe-intro-winners-acc"].value)[0],
        "label": "paper",
    }
    return pd.concat([pd.DataFrame([googlenet]), table2()], ignore_index=True)


def table3() -> pd.DataFrame:
    """Return Table 3: images to train and test on, classes, accuracy and the earlier best (%)."""
    rows = {}
    for key, claim in load().items():
        if key.startswith("gpipe-table3-") and claim.quantity == "accuracy (prior)":
            sizes = claim.conditions.split("classes ")[1].split("/")[:3]
            counts = [int(numbers(size)[0]) for size in sizes]
            rows[key.removeprefix("gpipe-table3-")] = [*counts, *numbers(claim.value), "paper"]
    columns = ["train", "test", "classes", "accuracy (%)", "earlier best (%)", "label"]
    return pd.DataFrame.from_dict(rows, "index", columns=columns).rename_axis("data")


def size_and_accuracy() -> float:
    """Return the rank correlation of parameters and accuracy among the points of Figure 1."""
    points = figure1()
    return float(points["parameters (M)"].corr(points["top-1 (%)"], method="spearman"))


def draw_figure1() -> tuple[go.Figure, pd.DataFrame]:
    """Return Figure 1, accuracy over parameters, and its points."""
    x, y = "parameters (millions)", "ImageNet top-1 accuracy (%)"
    points = figure1().rename(columns={"parameters (M)": x, "top-1 (%)": y}).sort_values(x)
    giant = points["model"].str.contains("amoebanet-b")
    points["source"] = giant.map({True: "AmoebaNet-B (6, 512), GPipe", False: "quoted"})
    correlation = f"rank correlation {size_and_accuracy():.2f}"
    title = f"Figure 1: larger models are more accurate, {correlation}"
    return plots.points(points, x, y, "source", title=title, label="paper"), points


def findings(picture: str) -> list[Finding]:
    """Return the paper's claims that are arithmetic on its own numbers."""
    transfer = table3()
    best = transfer["accuracy (%)"]
    wins = int((best > transfer["earlier best (%)"]).sum())
    errors = [round(100 - best[name], 6) for name in ("cifar10", "cifar100")]
    printed = f"of the {len(figure1())} points that the text prints"
    googlenet, senet = numbers(load()["gpipe-intro-36x-params"].conditions)
    memory = load()["gpipe-intro-accelerator-memory"].claim
    before, after = (float(gb) for gb in re.findall(r"(\d+)GB", memory))
    quotient = "quotient of the paper's own two numbers"
    return [
        Finding.exact("gpipe-fig1-accuracy-vs-size", size_and_accuracy(), printed, picture),
        Finding.exact("gpipe-intro-36x-params", senet / googlenet, quotient),
        Finding.exact("gpipe-intro-accelerator-memory", after / before, quotient),
        Finding.exact("gpipe-table3-wins", wins),
        Finding.exact("gpipe-sec433-error-rates", errors),
    ]
