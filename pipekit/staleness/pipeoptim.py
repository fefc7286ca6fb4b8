"""PipeOptim: a forward reads the weights predicted for its own backward.

Guan et al., "PipeOptim: Ensuring Effective 1F1B Schedule with Optimizer-Dependent Weight
Prediction" (arXiv 2312.00839), section III.
"""

from dataclasses import dataclass

from pipekit.schedules import Op
from pipekit.staleness.mitigation import Pass
from pipekit.staleness.prediction import Prediction


@dataclass(frozen=True)
class PipeOptim(Prediction):
    """W^ = W - s lr d in a forward, s = N - k - 1 on stage k of N (from 0); a backward reads W.

    d is SGD's momentum buffer, or m_hat / (sqrt(v_hat) + eps) of Adam and AdamW.  On
    ``schedules.pipedream(stages, n, stashing=False)``, where s is just how many updates a backward
    comes after its forward.

    Attributes:
        extra: updates by which a forward looks further.  The authors' released code
            (github.com/guanleics/PipeOptim, ``optimizer.py``) has s = N - k, one more than the
            paper and its own README: ``PipeOptim(extra=1)``, by name ``pipeoptim:extra=1``.
    """

    extra: int = 0
    stashing = False

    def ahead(self, at: Pass) -> int:
        """Return s."""
        return at.stages - at.stage - 1 + self.extra if at.op is Op.FORWARD else 0
