"""Which version of the weights each stage reads, by the papers' equations.

With n stages, stage s counted from 1, and W(t) the weights after t updates:

==========================  ===========================================  =======================
method                      the gradient of update t+1 is taken at       source
==========================  ===========================================  =======================
sequential                  W(t)                                         PipeDream 3.4, eq. 1
pipedream                   W_s(t-n+s) on stage s                        PipeDream 3.4, eq. 2
pipedream_vertical_sync     W(t-n+1)                                     PipeDream 3.4, eq. 3
pipedream_no_stashing       forward W_s(t-n+s), backward W(t): no true   PipeDream 3.4
                            gradient of the loss anywhere
2bw                         W(t-1)                                       PipeDream-2BW 3.1
asp, on r workers           W(t-r+1)                                     PipeDream 2.1
paci                        microbatch j (from 0): forward               arXiv 2606.07881, 3
                            W_s(floor((j-n+s)/m)), backward W(t)
==========================  ===========================================  =======================

A version before the first is W(0) (the pipeline fills up).  The update itself is always applied to
the newest weights, W(t).  If 2BW's pipeline is drained after a batch (``flush_after``), the next
one reads W(t).  GPipe, PipeDream-Flush (2BW paper, 3.2) and model parallelism are sequential
training.  What papers do about stale weights besides, say predict them (``mitigation``), is in
:mod:`pipekit.oracle.mitigation_equations`.

Where stage s is on r_s workers (PipeDream 3.2, 3.3), worker k mod r_s of them has microbatch k.  In
PipeDream r_s minibatches in a row, on the same weights, make one update with the mean of their
gradients, so that t counts rounds of r_s minibatches, and n - s + 1 above becomes the number of
rounds in flight, ceil((r_s + ... + r_n) / r_s).  Gradients are summed for each worker first, and
then over the workers in their order.  Where microbatches are shared out in another way (half of
them come from the pipeline's other end, say), or a worker adds them up in another order, ``shares``
says so.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

PACI = "paci"
NO_STASHING = "pipedream_no_stashing", PACI


# The version that stage s (from 0) reads for batch t (from 0), where stage i has r[i] workers and
# w[i] rounds in flight.
def _current(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    return t


def _staggered(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    return max(t // r[s] - w[s] + 1, 0)


def _oldest(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    # As many minibatches as the first stage has seen, or the next smaller number that is a round.
    return _staggered(t, 0, r, w) * r[0] // r[s]


def _previous(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    # The paper writes max(floor((k-1)/m) - 1, 0) for microbatch k from 1; floor((k-1)/m) is t.
    return max(t - 1, 0)


def _asynchronous(t: int, s: int, r: Sequence[int], w: Sequence[int]) -> int:
    return max(t - r[s] + 1, 0)


VERSION_READ: dict[str, Callable[[int, int, Sequence[int], Sequence[int]], int]] = {
    "sequential": _current,
    "model_parallel": _current,
    "gpipe": _current,
    "flush": _current,
    "pipedream": _staggered,
    "pipedream_no_stashing": _staggered,
    PACI: _current,  # each microbatch another one: see Reads
    "pipedream_vertical_sync": _oldest,
    "2bw": _previous,
    "asp": _asynchronous,
}


@dataclass(frozen=True)
class Reads:
    """Which versions a method reads."""

    method: str  # of the module's table
    replicas: Sequence[int]  # workers of each stage
    in_flight: Sequence[int]  # rounds in each stage
    rounds: Sequence[int]  # batches that an update of each stage averages
    microbatches: int  # of a batch
    flush_after: Collection[int]  # the batches after which 2BW's pipeline is drained

    def version(self, s: int, t: int, k: int) -> int:
        """Return what the forward of microbatch k, of batch t, reads on stage s."""
        if self.method == PACI:
            return max(k - self.in_flight[s] + 1, 0) // self.microbatches
        if self.method == "2bw" and t - 1 in self.flush_after:
            return t
        return VERSION_READ[self.method](t, s, self.replicas, self.in_flight)

    def delay(self, s: int) -> int:
        """Return the most updates from what a forward reads on stage s to its own update."""
        span = 4 * max(self.in_flight) * max(self.replicas)
        return max(
            k // self.microbatches // self.rounds[s] - self.version(s, k // self.microbatches, k)
            for k in range(span * self.microbatches)
        )
