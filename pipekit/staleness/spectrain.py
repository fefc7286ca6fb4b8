"""SpecTrain: both passes of a minibatch read the weights predicted for when it leaves the pipeline.

Chen, Yang and Cheng, "Efficient and Robust Parallel DNN Training through Model Parallelism on
Multi-GPU Platform" (arXiv 1809.02839), section 3.2, equations 4 to 6.
"""

from dataclasses import dataclass

from pipekit.schedules import Op
from pipekit.staleness.mitigation import Pass
from pipekit.staleness.prediction import Prediction


@dataclass(frozen=True)
class SpecTrain(Prediction):
    """W^ = W - s lr v, where stage k of N (from 0) looks ahead

    - s = floor(k/2) + N - k - 1 updates in a forward,
    - s = floor(k/2) updates in a backward.

    The paper's v is a running mean of gradients, which ``torch.optim.SGD(momentum=g,
    dampening=g)`` keeps; without ``dampening`` the learning rate is another by a factor.  With Adam
    and AdamW it takes their step, which is XPipe (Guan et al. 2019) for whole minibatches.  Of a
    minibatch cut in T microbatches XPipe predicts for the first one, s = round((N + T - k/2 - 2)/T)
    in forwards and round((T + floor(k/2) - 1)/T) in backwards, and lets all read that; it is known
    from a reader's notes alone, and is not here.  On ``schedules.pipedream(stages, n,
    stashing=False)``.
    """

    stashing = False

    def ahead(self, at: Pass) -> int:
        """Return s."""
        behind = at.stages - at.stage - 1 if at.op is Op.FORWARD else 0
        return at.stage // 2 + behind
