"""What GPipe's Figure 1, Tables 2 and 3 and section 1 print, read from the ledger of claims.

Nothing here is ours: every number is the paper's, most of them quoted by it from others.
"""

import re

import pandas as pd

from pipekit.ledger.ledger import load


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


def numbers(text: str) -> list[float]:
    """Return the numbers in a text; commas separate thousands."""
    return [float(n) for n in re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d)", "", text))]
