"""What a transformer consists of, by the shapes that were published for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pipekit.choices import require_choice


@dataclass(frozen=True)
class Attention:
    """Heads that share keys and values in groups; ``window``: how many tokens back they look."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None

    def __post_init__(self) -> None:
        if min(self.heads, self.kv_heads, self.head_dim) < 1:
            raise ValueError(
                f"attention has {self.heads} heads, {self.kv_heads} of keys, of {self.head_dim} "
                f"numbers: each must be at least 1; let the hidden size be at least the heads"
            )

    def parameters(self, hidden: int) -> float:
        return hidden * self.head_dim * 2.0 * (self.heads + self.kv_heads)


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    A ``query_rank`` of 0 stands for queries that are not compressed (DeepSeek-V2-Lite).
    """

    heads: int
    query_rank: int
    kv_rank: int
    head_dim: int = 128
    rope_dim: int = 64

    def parameters(self, hidden: int) -> float:
        down = hidden * (self.query_rank + self.kv_rank + self.rope_dim)
        queries = (self.query_rank or hidden) * self.heads * (self.head_dim + self.rope_dim)
        keys_values = self.kv_rank * self.heads * 2 * self.head_dim
        return down + queries + keys_values + hidden * self.heads * float(self.head_dim)


@dataclass(frozen=True)
class MLP:
    """Two products, or three with a gate (SwiGLU)."""

    width: int
    gated: bool = True

    def parameters(self, hidden: int) -> float:
        return (2.0 + self.gated) * hidden * self.width


@dataclass(frozen=True)
class Experts:
    """A mixture of ``count`` MLPs, ``active`` of which a token visits, beside a shared one.

    ``latent`` is the width of what experts receive, if it is not the hidden size;
    ``fused_activation`` says whether one kernel computes what is between their products.
    """

    count: int
    active: int
    width: int
    gated: bool = True
    shared_width: int = 0
    latent: int | None = None
    fused_activation: bool = True

    def parameters(self, hidden: int) -> float:
        """Return how many weights it has beside those of the experts: router, shared, latent."""
        shared = MLP(self.shared_width, self.gated).parameters(hidden)
        return shared + hidden * self.count + (2.0 * hidden * self.latent if self.latent else 0)

    def expert_parameters(self, hidden: int) -> float:
        return self.count * MLP(self.width, self.gated).parameters(self.latent or hidden)


@dataclass(frozen=True)
class Mamba:
    """A Mamba-2 mixer (Dao and Gu, arXiv 2405.21060)."""

    heads: int
    head_dim: int
    groups: int
    state: int

    def parameters(self, hidden: int) -> float:
        inner = self.heads * self.head_dim
        return hidden * (3.0 * inner + 2 * self.groups * self.state)


Layer = Attention | LatentAttention | MLP | Experts | Mamba
Block = tuple[Layer, ...]


@dataclass(frozen=True)
class Shape:
    """A model, all of whose blocks are taken to cost their mean."""

    name: str
    hidden: int  # width of the residual stream
    vocabulary: int  # tokens of the embedding and of the head
    blocks: tuple[tuple[Block, int], ...]  # each kind, and how many of them there are
    tied: bool = False  # whether embedding and head share weights
    predictors: int = 0  # blocks with a head of their own that predict further tokens (MTP)
    token_width: int | None = None  # of embedding and head, where it is not ``hidden``

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"{self.name} has {self.layers} blocks: give it at least one")

    @cached_property
    def layers(self) -> int:
        """How many blocks there are."""
        return sum(count for _, count in self.blocks)

    @property
    def token_numbers(self) -> int:
        """How many a token has in the embedding, and in the head."""
        return self.token_width or self.hidden

    @cached_property
    def dense_parameters(self) -> float:
        """Weights of all blocks but for those of experts."""
        return sum(n * layer.parameters(self.hidden) for layer, n in self.each_layer())

    @cached_property
    def expert_parameters(self) -> float:
        return sum(n * layer.expert_parameters(self.hidden) for layer, n in self.mixtures())

    @property
    def active_parameters(self) -> float:
        """Weights that a token visits, the head's among them."""
        visited = sum(
            n * layer.expert_parameters(self.hidden) * layer.active / layer.count
            for layer, n in self.mixtures()
        )
        return self.dense_parameters + visited + self.vocabulary * self.token_numbers

    @property
    def kind(self) -> str:
        """The class whose predictions have an interval of their own: "experts" or "dense"."""
        return "experts" if any(self.mixtures()) else "dense"

    def each_layer(self) -> Iterator[tuple[Layer, int]]:
        """Yield each layer of each kind of block, and how many of them there are."""
        return ((layer, count) for block, count in self.blocks for layer in block)

    def mixtures(self) -> Iterator[tuple[Experts, int]]:
        """Yield those that are mixtures of experts."""
        return ((each, n) for each, n in self.each_layer() if isinstance(each, Experts))


def gpt(name: str, hidden: int, heads: int, layers: int, vocabulary: int = 50257) -> Shape:
    """Return a GPT: as many key as query heads, an MLP of four times the width, tied weights."""
    block = Attention(heads, heads, hidden // heads), MLP(4 * hidden, gated=False)
    return Shape(name, hidden, vocabulary, ((block, layers),), tied=True)


def llama(
    name: str, hidden: int, heads: int, kv_heads: int, width: int, layers: int, vocabulary: int
) -> Shape:
    """Return a Llama-like model: grouped key heads, a gated MLP."""
    block = Attention(heads, kv_heads, hidden // heads), MLP(width)
    return Shape(name, hidden, vocabulary, ((block, layers),))


def _deepseek(
    name: str, vocabulary: int, heads: int, dense: int, experts: int, predictors: int
) -> Shape:
    attention = LatentAttention(heads, 1536, 512)
    sparse = attention, Experts(experts, 8, 2048, shared_width=2048)
    blocks = (((attention, MLP(18432)), dense), (sparse, 61 - dense))
    return Shape(name, 7168, vocabulary, blocks, predictors=predictors)


def _nemotron(
    name: str, hidden: int, counts: tuple[int, int, int], heads: int, mamba: int, experts: Experts
) -> Shape:
    """Return a hybrid of Mamba, mixtures and attention, a block each."""
    mixers: tuple[Layer, ...] = Mamba(mamba, 64, 8, 128), experts, Attention(heads, 2, 128)
    blocks = tuple(((mixer,), count) for mixer, count in zip(mixers, counts, strict=True))
    return Shape(name, hidden, 131072, blocks, predictors=int(experts.latent is not None))


_QWEN_30B, _QWEN_235B = Experts(128, 8, 768), Experts(128, 8, 1536)
_OSS_20B = Experts(32, 4, 2880, fused_activation=False)
_GPT_OSS = Experts(128, 4, 2880, fused_activation=False)
_WINDOW, _WHOLE = Attention(64, 8, 64, window=128), Attention(64, 8, 64)
_NEMOTRON_H: tuple[tuple[Block, int], ...] = (
    ((Mamba(256, 64, 8, 256),), 54),
    ((MLP(32768, gated=False),), 54),
    ((Attention(64, 8, 128),), 10),
)
_NANO = Experts(128, 6, 1856, gated=False, shared_width=3712)
_SUPER = Experts(512, 22, 2688, gated=False, shared_width=5376, latent=1024)
_ULTRA = Experts(512, 22, 5120, gated=False, shared_width=10240, latent=2048)

SHAPES = {
    each.name: each
    for each in (
        gpt("gpt2", 768, 12, 12),
        gpt("gpt2-xl", 1600, 25, 48),
        gpt("gpt3-175b", 12288, 96, 96),
        gpt("bert-large", 1024, 16, 24, 30522),
        gpt("opt-350m", 1024, 16, 24, 50272),
        gpt("opt-175b", 12288, 96, 96, 50272),
        gpt("gpt-neo-2.7b", 2560, 20, 32),
        llama("llama2-7b", 4096, 32, 32, 11008, 32, 32000),
        llama("llama2-70b", 8192, 64, 8, 28672, 80, 32000),
        llama("llama3-8b", 4096, 32, 8, 14336, 32, 128256),
        llama("llama3-70b", 8192, 64, 8, 28672, 80, 128256),
        llama("llama3.1-8b", 4096, 32, 8, 14336, 32, 128256),
        llama("llama3.1-70b", 8192, 64, 8, 28672, 80, 128256),
        llama("llama3.1-405b", 16384, 128, 8, 53248, 126, 128256),
        llama("qwen2-7b", 3584, 28, 4, 18944, 28, 152064),
        llama("qwen3-8b", 4096, 32, 8, 12288, 36, 151936),
        Shape("qwen3-32b", 5120, 151936, (((Attention(64, 8, 128), MLP(25600)), 64),)),
        Shape("mixtral-8x7b", 4096, 32000, (((Attention(32, 8, 128), Experts(8, 2, 14336)), 32),)),
        Shape("mixtral-8x22b", 6144, 32768, (((Attention(48, 8, 128), Experts(8, 2, 16384)), 56),)),
        Shape("qwen3-30b-a3b", 2048, 151936, (((Attention(32, 4, 128), _QWEN_30B), 48),)),
        Shape("qwen3-235b-a22b", 4096, 151936, (((Attention(64, 4, 128), _QWEN_235B), 94),)),
        Shape("gpt-oss-20b", 2880, 201088, (((_WINDOW, _OSS_20B), 12), ((_WHOLE, _OSS_20B), 12))),
        Shape("gpt-oss-120b", 2880, 201088, (((_WINDOW, _GPT_OSS), 18), ((_WHOLE, _GPT_OSS), 18))),
        _deepseek("deepseek-v3", 129280, heads=128, dense=3, experts=256, predictors=1),
        _deepseek("kimi-k2", 163840, heads=64, dense=1, experts=384, predictors=0),
        Shape("nemotronh-56b", 8192, 131072, _NEMOTRON_H),
        _nemotron("nemotron-3-nano", 2688, (23, 23, 6), 32, 64, _NANO),
        _nemotron("nemotron-3-super", 4096, (40, 40, 8), 32, 128, _SUPER),
        _nemotron("nemotron-3-ultra", 8192, (48, 48, 12), 64, 256, _ULTRA),
    )
}
"""Published models by name: their papers' tables, or the config.json of their release."""


def shape(name: str) -> Shape:
    """Return a published model; ValueError has the closest name."""
    require_choice("model", name, SHAPES)
    return SHAPES[name]
