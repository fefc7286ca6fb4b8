"""What papers say of stale weights, each as a sign of a method's loss beside another's."""

from typing import NamedTuple

from experiments.staleness.methods import BSP, SYNC

CONTRADICTS, AGREES, UNDECIDED = "contradicts", "agrees", "undecided"
HIGHER, LOWER, NOT_HIGHER, NOT_LOWER = "higher", "lower", "not higher", "not lower"
SAME = "same"


class PaperClaim(NamedTuple):
    """What a paper says of a method beside another one, as a sign of its excess in loss."""

    name: str  # ours
    source: str  # paper and section
    text: str  # with what was put in or left out in brackets
    method: str  # whose loss
    other: str  # beside which
    expected: str  # of the loss: one of the five above
    trained: str  # what the paper trained, or nearest to it: "gpt adamw, bert adamw"
    optimizer: str = ""  # the only one that it is about; empty: any
    other_optimizer: str = ""  # that of the other method, if it is not the same

    def covers(self, proxy: str, optimizer: str) -> bool:
        """Return whether the paper trained such a network with such an optimizer."""
        return f"{proxy.partition('-')[0]} {optimizer}" in self.trained.split(", ")

    def verdict(self, told: float, above: bool, below: bool) -> str:
        """Return whether a comparison agrees; ``told``: the excess if its sign is shown, else 0."""
        higher, lower = told > 0 and not above, told < 0 and not below
        agrees, contradicts = {
            HIGHER: (higher, lower or above),
            LOWER: (lower, higher or below),
            NOT_HIGHER: (lower or above, higher),
            SAME: (above and below, higher or lower),
            NOT_LOWER: (higher or below, lower),
        }[self.expected]
        return CONTRADICTS if contradicts else AGREES if agrees else UNDECIDED


_ONE_STEP = "Zmushko et al. (2026), abstract"
_SIMILAR = "[2BW] has empirically similar model convergence to vanilla weight updates"
_BETWEEN = "PipeDream's default semantics (weight stashing but no vertical sync) are between "
_BETWEEN += "regular minibatched SGD on a single machine, and data parallelism with BSP "
_BETWEEN += "synchronization"
_CRITICAL = "weight stashing is critical for meaningful learning"
_NEGLIGIBLE = "the impact of vertical sync is negligible"
_ADAMW = "AdamW [...] indeed suffers from severe degradation [under one-step delay]"
_MUON = "recent methods like Muon exhibit strong robustness under a one-step delay"
_FEEDBACK = "an [...] Error Feedback-inspired correction to further mitigate delay effects"
_PIPEMARE = "similar model quality, when compared to state-of-the-art synchronous PP training"
_NESTEROV = "[NAdam on PipeDream is] even surpassing the synchronous baseline"
_PACI = "PACI matches the stability and final perplexity of synchronous 1F1B-flush"
_SECTION, _NOTE = "PipeDream, section 3.4", "PipeDream, section 3.4, footnote 4"
_AJANTHAN, _SPECTRAIN = "Ajanthan et al. (2025), abstract", "maintains comparable model accuracy"
_1_AND_5_1 = "PipeDream-2BW, sections 1 and 5.1"
_VISION, _GPT, _TEXT = "images sgd", "gpt adamw", "gpt adamw, bert adamw"
CLAIMS = (
    PaperClaim("2bw", _1_AND_5_1, _SIMILAR, "2bw", SYNC, NOT_HIGHER, _TEXT),
    PaperClaim(
        "above-sgd", f"{_SECTION}, above SGD", _BETWEEN, "pipedream", SYNC, NOT_LOWER, _VISION
    ),
    PaperClaim(
        "below-bsp", f"{_SECTION}, below BSP", _BETWEEN, "pipedream", BSP, NOT_HIGHER, _VISION
    ),
    PaperClaim("stashing", _SECTION, _CRITICAL, "no-stashing", "pipedream", HIGHER, _VISION),
    PaperClaim("vertical-sync", _NOTE, _NEGLIGIBLE, "vertical-sync", "pipedream", SAME, _VISION),
    PaperClaim("adamw", _ONE_STEP, _ADAMW, "2bw", SYNC, HIGHER, _GPT, "adamw"),
    PaperClaim("muon", _ONE_STEP, _MUON, "2bw", SYNC, NOT_HIGHER, "gpt muon", "muon"),
    PaperClaim(
        "error-feedback", _ONE_STEP, _FEEDBACK, "2bw-feedback", "2bw", LOWER, "gpt adamw, gpt muon"
    ),
    PaperClaim(
        "spectrain", "SpecTrain, abstract", _SPECTRAIN, "spectrain", SYNC, NOT_HIGHER, _VISION
    ),
    PaperClaim(
        "pipemare",
        "PipeMare, abstract",
        _PIPEMARE,
        "pipemare",
        SYNC,
        NOT_HIGHER,
        f"{_VISION}, {_GPT}",
    ),
    PaperClaim(
        "nesterov", _AJANTHAN, _NESTEROV, "pipedream", SYNC, LOWER, "gpt nadam", "nadam", "adamw"
    ),
    PaperClaim("paci", "PACI, abstract", _PACI, "paci", SYNC, NOT_HIGHER, _GPT),
)
