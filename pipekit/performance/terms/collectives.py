"""Seconds of messages between ranks: rings and pairs over a node's links or the network."""

from dataclasses import dataclass

from pipekit.performance.devices import Machine

_NODE_SHARE, _NETWORK_SHARE = 0.8, 0.9
"""Of their sheets' bandwidths that large messages get (NVIDIA/nccl-tests, PERFORMANCE.md: 230 to
240 of 300 GB/s on A100; RDMA's payload)."""
_NODE_LATENCY_S, _NETWORK_LATENCY_S = 20e-6, 50e-6
"""Until the first byte of a collective arrives (Hu et al., Demystifying NCCL, arXiv 2507.04786)."""


@dataclass(frozen=True)
class Links:
    """A machine's links, by its data sheet."""

    machine: Machine

    @property
    def node_rate(self) -> float:
        """Bytes/s of a rank's large messages inside a node."""
        return self.machine.node_bandwidth * _NODE_SHARE

    @property
    def network_rate(self) -> float:
        """Bytes/s of a rank's large messages between nodes."""
        return self.machine.network_bandwidth * _NETWORK_SHARE

    def rate(self, ranks: int, stride: int = 1) -> float:
        """Return bytes/s of each rank to any other: without a ring each has its own network."""
        return self.node_rate if ranks * stride <= self.machine.node_gpus else self.network_rate

    def all_reduce(self, ranks: int, size: float, stride: int = 1) -> float:
        """Return seconds to sum ``size`` bytes of each rank (Patarasu and Yuan, JPDC 2009)."""
        if ranks < 2:
            return 0.0
        inside = ranks * stride <= self.machine.node_gpus
        latency = _NODE_LATENCY_S if inside else _NETWORK_LATENCY_S
        return 2 * self.scatter(ranks, size, stride) + latency

    def scatter(self, ranks: int, size: float, stride: int = 1) -> float:
        """Return seconds of a reduce-scatter or an all-gather of ``size`` bytes, no latency.

        Beyond a node a ring of every ``stride``-th GPU enters it once and may use the network of
        each of its ranks there.
        """
        here = min(max(self.machine.node_gpus // stride, 1), ranks)
        rate = self.node_rate
        if here < ranks:
            rate = min(rate, self.network_rate * here)
        return (ranks - 1) / ranks * size / rate

    def message(self, size: float, *, inside: bool) -> float:
        """Return seconds of ``size`` bytes from one rank to another."""
        return size / (self.node_rate if inside else self.network_rate) + _NODE_LATENCY_S
