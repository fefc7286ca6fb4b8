"""What the workers of a stage send one another, and links that take their time over it."""

import pytest
from torch import Tensor, nn

import pipekit as pk
from pipekit import schedules
from pipekit.clusters import flat
from pipekit.profiling import Profile
from tests.engine.examples import data, different, mixed, mlp
from tests.engine.parametrized import TRANSPORTS
from tests.engine.replicas.test_replicas import BALANCES, replicated

# --- Bytes ---------------------------------------------------------------------------------------


@TRANSPORTS
@pytest.mark.parametrize("m", [2, 4])
def test_an_update_costs_4_m_minus_1_of_m_of_the_weights(m: int, transport: str) -> None:
    """Sent and received by each worker (PipeDream, section 3.2)."""
    model, rounds = mlp(6, 12, 4), 3
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert weights % (4 * m) == 0
    pipe = replicated(model, [m], [2], transport=transport, loss=first_three)
    traffic = pipe.train(data(rounds * m)).traffic
    assert set(traffic["purpose"]) == {"weights"}
    for way in ("source", "destination"):
        each = traffic.groupby(way)["bytes"].sum()
        assert each.tolist() == [rounds * 2 * (m - 1) * weights / m] * m


def first_three(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output[:, :3], target)


@TRANSPORTS
def test_a_minibatch_costs_its_boundaries_activations_and_gradients(transport: str) -> None:
    model, n = mlp(6, 8, 10, 3), 6
    pipe = replicated(model, [2, 1, 1], [1, 1, 1], transport=transport)
    traffic = pipe.train(data(n, rows=5)).traffic
    links = traffic.set_index(["source", "destination", "purpose"])["bytes"].to_dict()
    weights = 4 * (6 * 8 + 8)
    narrow, wide = 4 * 5 * 8, 4 * 5 * 10  # a minibatch's bytes on each boundary
    assert links == {
        (0, 1, "weights"): n // 2 * weights,
        (1, 0, "weights"): n // 2 * weights,
        (0, 2, "activation"): n // 2 * narrow,
        (1, 2, "activation"): n // 2 * narrow,
        (2, 0, "gradient"): n // 2 * narrow,
        (2, 1, "gradient"): n // 2 * narrow,
        (2, 3, "activation"): n * wide,
        (3, 2, "gradient"): n * wide,
    }


def test_a_stage_without_weights_sends_none() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    traffic = replicated(model, [1, 2], [1, 1]).train(data(4)).traffic
    assert set(traffic["purpose"]) == {"activation", "gradient"}


def test_one_worker_sends_nothing() -> None:
    assert replicated(mlp(6, 3), [1], [1]).train(data(2)).traffic.empty


@pytest.mark.parametrize("replicas", [[3], [2, 1, 1], [2, 3]])
def test_an_emulation_sends_what_is_simulated(replicas: list[int]) -> None:
    """If all rounds are full: who has no gradient for an update sends less."""
    schedule, cluster = schedules.pipedream(replicas).take(6), flat(sum(replicas), 1e9)
    profile = Profile.uniform(len(replicas), 1e-4, 1e-4, output_bytes=40, parameter_bytes=240)
    run = pk.emulate(schedule, profile, cluster=cluster)
    trace = pk.simulate(schedule, profile, cluster=cluster)
    tasks = ["worker", "stage", "op", "microbatch", "version", "bytes"]
    assert run.trace.frame[tasks].to_numpy().tolist() == trace.frame[tasks].to_numpy().tolist()
    assert trace.transfers is not None
    found, expected = (
        frame.groupby(["source", "purpose"])["bytes"].sum().to_dict()
        for frame in (run.traffic, trace.transfers)
    )
    assert found == expected


# --- Slow links ----------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [[2, 1], [1, 2], [3]])
def test_slow_links_change_no_weights(replicas: list[int]) -> None:
    balance = BALANCES[len(replicas)]
    fast = replicated(mixed(), replicas, balance)
    slow = replicated(mixed(), replicas, balance, cluster=flat(sum(replicas), 1e6))
    one, other = fast.train(data(5)), slow.train(data(5))
    assert one.losses == other.losses
    assert different(fast.state_dict(), slow.state_dict()) == []
    assert one.traffic["bytes"].tolist() == other.traffic["bytes"].tolist()
