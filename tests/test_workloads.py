import math
import pickle

import pytest
import torch

from pipekit.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
class TestWorkloads:
    def test_the_network_takes_its_data_and_knows_nothing_yet(self, name: str) -> None:
        """Its guess is about as good as equal chances for all classes."""
        torch.manual_seed(0)
        workload = WORKLOADS[name]
        data = workload.data()
        inputs, targets = data.test_batches(100)[0]
        output = workload.build()(inputs)
        classes = output.shape[-1]
        loss = workload.loss(output, targets).item()
        assert loss == pytest.approx(math.log(classes), rel=0.05)
        score = workload.metric.of(output, targets).item()
        assert score == {10: pytest.approx(0.1, abs=0.07), 256: pytest.approx(8, rel=0.05)}[classes]

    def test_a_sample_is_made_like_the_data(self, name: str) -> None:
        workload = WORKLOADS[name]
        sample, row = workload.sample(3), workload.data().train_inputs[0]
        assert sample.shape == (3, *row.shape)
        assert sample.dtype == row.dtype

    def test_worker_processes_can_be_told_how_to_judge(self, name: str) -> None:
        workload = WORKLOADS[name]
        judges = workload.loss, workload.metric.of
        assert pickle.loads(pickle.dumps(judges)) == judges
