import pandas as pd
import pytest

from experiments.prediction import study
from experiments.prediction.runs import MethodCase
from pipekit.profiling import Profile


def test_every_network_method_and_link_has_a_row() -> None:
    costs = {"four": Profile.uniform(4, 0.001, 0.002, output_bytes=100)}
    table = study.emulate_all(costs, [MethodCase("gpipe", 2, 2, 1)], bandwidth=1e6)
    assert table["links"].tolist() == ["free", "0.008 Gbit/s"]
    figure = study.emulated_figure(table.assign(error=[0.01, -0.25]))
    assert "agree within 25.0%" in figure.layout.title.text


def test_the_models_train() -> None:
    names = []
    for model in study.trained_models():
        model.loss(model.module(model.inputs), model.targets).backward()
        names.append(model.name)
    assert names == ["convnet on MNIST", "MLP 8 x 512", "GPT 6 x 128"]


def test_the_title_has_the_distance_of_the_planners_cut() -> None:
    columns = {"predicted (s)": [1.0, 1.0], "found (s)": [1.0, 1.5], "batches": 48}
    splits = pd.DataFrame(columns | {"chosen": [False, True]})
    figure = study.split_figure(splits)
    assert "50.0% from the best of 2" in figure.layout.title.text
    assert figure.layout.yaxis.title.text == "48 minibatches (s)"
    assert len(study.split_curve(splits)) == 4
    measured = pd.DataFrame({"predicted (s)": [1.0], "found (s)": [2.0]})
    figure = study.measured_figure(measured.assign(error=[-0.5], model="m", outcome="decided"))
    assert "differ by 50.0%" in figure.layout.title.text


def test_profiles_are_of_the_published_networks() -> None:
    assert study.published_profiles(["vgg16"])["vgg16"].rows == 32
    assert study.published_profiles(["gpt-355M"])["gpt-355M"].rows == pytest.approx(2)
