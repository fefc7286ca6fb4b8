from collections.abc import Callable

import pytest
import torch
from torch import nn

from pipekit.models import bert_large, classifier, gpt


def bert() -> nn.Sequential:
    return bert_large(2, 32, 2, vocabulary=257, sequence=16, dropout=0.0)


@pytest.mark.parametrize(
    ("make", "trunk"), [(bert, 3), (lambda: gpt(2, 32, 2, vocabulary=257, sequence=16), 4)]
)
def test_the_trunk_is_a_copy_of_the_pre_trained_layers_under_the_same_names(
    make: Callable[..., nn.Sequential], trunk: int
) -> None:
    torch.manual_seed(0)
    model = make()
    tuned = classifier(model, classes=5)
    loaded = tuned.state_dict()
    kept = {name: w for name, w in model.state_dict().items() if int(name.split(".")[0]) < trunk}
    assert all(torch.equal(loaded[name], weight) for name, weight in kept.items())
    assert len(tuned) == trunk + 5
    tuned[0].get_parameter(next(n for n, _ in tuned[0].named_parameters())).data.zero_()
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in kept.items())


def test_texts_become_logits_of_their_mean_token() -> None:
    torch.manual_seed(0)
    model = bert()
    tuned = classifier(model, classes=5).eval()
    tokens = torch.randint(256, (3, 16))
    mean = model[:3](tokens).mean(dim=1)
    torch.testing.assert_close(tuned(tokens), tuned[4:](mean))
    assert tuned(tokens).shape == (3, 5)


def test_models_without_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks; there is none"):
        classifier(nn.Sequential(nn.Linear(2, 2)), classes=2)
