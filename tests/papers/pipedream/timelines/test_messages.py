import pandas as pd
import torch
from torch import nn

from pipekit import Pipeline, schedules
from pipekit.papers.pipedream.timelines import messages as tl


def test_every_message_is_counted_by_its_purpose() -> None:
    data = [(torch.randn(2, 4), torch.randn(2, 4))] * 6
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        schedules.pipedream([2, 1]),
        balance=[1, 1],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=nn.MSELoss(),
    )
    # Two replicas swap a shard and its sum in each of three rounds.
    counter = tl.MessageCounter()
    pipeline.train(data, observers=[counter])
    assert counter.seen == {
        "activation": 6,
        "gradient": 6,
        "weights": 12,
    }


def test_a_message_without_tensors_is_control() -> None:
    counter = tl.MessageCounter()
    step = schedules.lower(schedules.gpipe(2, 1).take(1))[0].head[0]
    (message, receiver), *_ = step.sends
    counter.sent(0, step, message, receiver, (), 0)
    counter.values_summed(0, 1, torch.zeros(1))
    assert counter.seen == {"control": 2}


def test_a_list_that_no_worker_makes_alone_is_counted() -> None:
    sent = pd.DataFrame({"activation": [3], "gradient": [3], "weights": [0], "control": [2]})
    table = schedules.pipedream([2, 1]).take(6)
    assert tl.coordination_finding(sent, {(2, 1): table}).value == [2, 0]
    deeper = schedules.pipedream([2, 1], in_flight=[3, 1]).take(6)
    found = tl.coordination_finding(sent, {(2, 1): deeper})
    assert found.value == [2, 2]
    assert found.note.startswith("8 messages")
