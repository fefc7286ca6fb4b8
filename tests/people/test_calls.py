"""Calls as people make them: what is made outside, in another mode, or of another kind."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import pipekit as pk
from tests.engine.parametrized import first_over_processes
from tests.people.plain import assert_as_plain, plain_loop
from tests.people.test_data import SGD, X, Y, pipeline
from tests.people.test_losses import no_word


def network(middle: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), middle or nn.Tanh(), nn.Linear(8, 3))


def outside(kind: Callable[..., Any], **options: Any) -> Any:
    return kind(network().parameters(), **options)


class Own(torch.optim.SGD):
    pass


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (outside(torch.optim.SGD, lr=0.1), "lambda parameters: torch.optim.SGD(parameters, ...)"),
        (outside(Own, lr=0.1, momentum=0.9), "lambda parameters: Own(parameters, ...)"),
    ],
)
def test_an_optimizer_made_outside_is_refused_with_the_line_to_write(made: Any, line: str) -> None:
    with pytest.raises(TypeError, match="made outside") as caught:
        pipeline(network(), optimizer=made)
    assert str(caught.value).endswith(line)


def test_the_class_of_an_optimizer_with_a_rate_of_its_own_makes_one() -> None:
    model = network()
    run = pipeline(copy.deepcopy(model), 1, optimizer=torch.optim.Adam).train([(X, Y)] * 3)
    assert run.losses == pytest.approx(
        plain_loop(model, torch.optim.Adam, F.cross_entropy, [(X, Y)] * 3), rel=1e-6
    )


def test_a_scheduler_made_outside_is_refused_with_the_line_to_write() -> None:
    made = torch.optim.lr_scheduler.StepLR(outside(torch.optim.SGD), 1)
    with pytest.raises(TypeError, match=r"lambda optimizer: torch.optim.lr_scheduler.StepLR\("):
        pk.Updates(lr_scheduler=made)  # type: ignore[arg-type]


class Noam:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None: ...


def test_options_of_another_kind_are_refused() -> None:
    with pytest.raises(TypeError, match=r"updates must be a pipekit.Updates, not dict"):
        pipeline(network(), updates={"clip_norm": 1.0})
    with pytest.raises(ValueError, match="clip_norm must be at least 0"):
        pk.Updates(clip_norm=-1.0)
    updates = pk.Updates(lr_scheduler=Noam)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Noam has no state_dict\(\)"):
        pipeline(network(), updates=updates).train([(X, Y)])


def test_a_model_that_is_frozen_as_a_whole_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="no parameter of the model is trained"):
        pipeline(network().requires_grad_(False)).train([(X, Y)])


class OwnLoss:
    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, OwnLoss])
def test_a_loss_without_parentheses_is_refused(loss: Any) -> None:
    with pytest.raises(TypeError, match=rf"loss is a class: make one, loss=.*{loss.__name__}\(\)"):
        pipeline(network(), loss=loss)
    with pytest.raises(TypeError, match=rf"accuracy is a class.*{loss.__name__}\(\)"):
        pipeline(network()).evaluate([(X, Y)], {"accuracy": loss})
    made = pipeline(network(), loss=loss())
    assert made.evaluate([(X, Y)]) == made.evaluate([(X, Y)], F.cross_entropy)


def lazy() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    "use",
    [
        pipeline,
        lambda model: pk.stages(model, X),
        lambda model: pk.PipelinedModule(model, [1, 2], chunks=2),
    ],
)
def test_a_lazy_layer_takes_its_size_from_a_batch_before(use: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"no '0.weight' before its first.*model\(example\)"):
        use(lazy())
    model = lazy()
    model(X)
    use(model)


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:The .grad attribute")
def test_a_compiled_script_is_refused_since_no_copy_of_it_trains() -> None:
    with pytest.raises(TypeError, match=r"'0.weight' cannot be trained.*torch.compile"):
        pipeline(nn.Sequential(torch.jit.script(nn.Linear(8, 8)), nn.Linear(8, 3)))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("computed", "instead"),
    [
        (lambda: nn.utils.weight_norm(nn.Linear(8, 8)), "parametrizations.weight_norm"),
        (lambda: prune.l1_unstructured(nn.Linear(8, 8), "weight", 0.5), r"prune.remove\(layer"),
    ],
)
def test_a_weight_computed_by_a_hook_is_refused_but_for_a_module_which_shares_it(
    computed: Callable[[], nn.Module], instead: str
) -> None:
    with pytest.raises(TypeError, match=instead) as caught:
        pipeline(network(computed()))
    assert "deepcopy" not in str(caught.value)
    gradients = []
    for made in partial(pk.PipelinedModule, balance=[2, 1], chunks=2), lambda layers: layers:
        torch.manual_seed(1)
        model = made(network(computed()))
        with no_word():
            F.cross_entropy(model(X), Y).backward()
        gradients.append([weight.grad for weight in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_spectral_norm_that_has_run_is_refused_likewise() -> None:
    model = network(nn.utils.spectral_norm(nn.Linear(8, 8)))
    model(X).sum().backward()
    with pytest.raises(TypeError, match=r"use torch.nn.utils.parametrizations.spectral_norm"):
        pipeline(model)


@first_over_processes("computed", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_a_parametrized_weight_trains_as_in_a_plain_loop(computed: Any, transport: str) -> None:
    model = network(computed(nn.Linear(8, 8)))
    run = pipeline(copy.deepcopy(model), transport=transport).train([(X, Y)] * 3)
    want = plain_loop(model, SGD, F.cross_entropy, [(X, Y)] * 3, microbatches=2)
    assert run.losses == pytest.approx(want, rel=1e-6)


def test_a_pipeline_made_in_inference_mode_is_refused() -> None:
    model = network()
    with torch.inference_mode(), pytest.raises(ValueError, match="make the pipeline outside"):
        pipeline(model).train([(X, Y)])


def test_training_and_evaluating_in_inference_mode_are_those_outside() -> None:
    losses = []
    for mode in (True, False):
        made = pipeline(network())
        with torch.inference_mode(mode):
            stream = ((1 * X, Y) for _ in range(2))
            losses.append([made.evaluate([(X, Y)]), *made.train(stream).losses])
    assert losses[0] == losses[1]
    with torch.inference_mode(), pytest.raises(ValueError, match="make it outside"):
        made.train([(1 * X, Y)])


def test_a_pipeline_is_neither_copied_nor_pickled_but_averaged_by_its_weights() -> None:
    model = network()
    made = pipeline(model)
    saved: Callable[[Any], Any] = lambda pipe: torch.save(pipe, io.BytesIO())  # noqa: E731
    uses: list[Any] = [AveragedModel, copy.copy, copy.deepcopy, pickle.dumps, saved]
    for use in uses:
        with pytest.raises(TypeError, match=r"update_parameters\(pipeline.load_into\(model\)\)"):
            use(made)
    average, plain = AveragedModel(model), network()
    plain_average = AveragedModel(plain)
    for _ in range(2):
        made.train([(X, Y)])
        average.update_parameters(made.load_into(model))
        plain_loop(plain, SGD, F.cross_entropy, [(X, Y)], microbatches=2)
        plain_average.update_parameters(plain)
    for one, other in zip(average.parameters(), plain_average.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-6)


def test_batch_norm_of_one_row_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="use fewer microbatches") as caught:
        pipeline(network(nn.BatchNorm1d(8)), 8).train([(X, Y)])
    assert str(caught.value).startswith("layer 1 (BatchNorm1d)")
    with pytest.raises(ValueError, match="1 value per channel") as caught:
        pipeline(network(nn.BatchNorm1d(8)), 8).train([(X.repeat(2, 1), Y.repeat(2)), (X, Y)])
    assert "drop_last=True" in caught.value.__notes__[-1]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 3)])

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.blocks[1](self.blocks[0](x).tanh()), None


def first(output: Any, target: Tensor) -> Tensor:
    assert output[1] is None
    return F.cross_entropy(output[0], target)


@pytest.mark.parametrize(
    "transport", ["threads", pytest.param("distributed", marks=pytest.mark.slow)]
)
def test_a_recorded_model_may_return_none_among_its_outputs(transport: str) -> None:
    torch.manual_seed(0)
    model = Heads()
    made = pipeline(pk.stages(model, X), loss=first, transport=transport)
    losses = made.train([(X, Y)] * 3).losses
    output, nothing = made.predict([X])[0]
    assert (nothing, output.shape) == (None, (8, 3))
    want = plain_loop(model, SGD, first, [(X, Y)] * 3, microbatches=2)
    assert losses == pytest.approx(want, rel=1e-6)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        y, weights = self.heads(x, x, x, need_weights=False)
        return {"x": y, "weights": weights}


class Reads(nn.Linear):
    def forward(self, passed: dict[str, Any]) -> Tensor:  # type: ignore[override]
        assert passed["weights"] is None
        return super().forward(passed["x"].mean(1))


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_layers_may_pass_on_none_beside_tensors(recompute: Any) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Attends(), Reads(8, 3)), torch.randn(8, 5, 8)
    how = pk.Execution(recompute=recompute)
    run = pipeline(copy.deepcopy(model), execution=how).train([(x, Y)] * 3)
    want = plain_loop(model, SGD, F.cross_entropy, [(x, Y)] * 3, microbatches=2)
    assert run.losses == pytest.approx(want, rel=1e-6)


class Forgets(nn.Module):
    def forward(self, x: Tensor) -> None:
        x.sum()


def test_a_layer_that_returns_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match=r"layer 1 \(Forgets\) returns something"):
        pipeline(network(Forgets())).train([(X, Y)])


def test_a_prediction_of_pairs_is_told_to_leave_out_targets() -> None:
    says = r"cannot take what predict\(\) was given .*\(x for x, \*_ in batches\)"
    for model, given in (network(), [X]), (network(), [X, Y]), (pk.stages(network(), X), [X, Y]):
        with pytest.raises(ValueError, match=says):
            pipeline(model).predict(DataLoader(TensorDataset(*given), 8))


def test_a_balance_may_have_numpys_numbers() -> None:
    assert_as_plain(network(), balance=list(np.array([1, 2])))
