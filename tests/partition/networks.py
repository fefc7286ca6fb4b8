"""Small random networks of many kinds, as people bring them, each with a batch.

All draw no random numbers in training, so that a plain loop is their judge to the bit.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pipekit import Pipeline, Schedule
from tests.engine.examples import different, values
from tests.people.plain import plain_loop

CLASSES = 5


class Network(NamedTuple):
    """A model and a batch for it."""

    model: nn.Module
    batch: Any


def require_as_in_a_plain_loop(
    layers: nn.Sequential,
    judge: nn.Module,
    batches: Sequence[tuple[Any, Tensor]],
    schedule: Schedule,
    loss: Callable[[Any, Tensor], Tensor] = F.mse_loss,
    **options: Any,
) -> None:
    """Train layers in a pipeline, and the judge batch by batch: losses and weights are equal."""
    settings = {"optimizer": partial(torch.optim.SGD, lr=0.1)} | options
    pipeline = Pipeline(layers, schedule, loss=loss, **values(**settings))
    losses, state = pipeline.train(batches).losses, pipeline.state_dict()
    pipeline.close()
    assert losses == plain_loop(judge, settings["optimizer"], loss, batches)
    assert different(state, dict(judge.state_dict())) == []


class Net(nn.Module):
    """Three linear layers or other blocks, further parts, and a forward that a test has written."""

    def __init__(
        self,
        forward: Callable[..., Any],
        blocks: Sequence[nn.Module] = (),
        width: int = 4,
        **parts: nn.Module,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(blocks or [nn.Linear(width, width) for _ in range(3)])
        self.function = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def in_turn(model: Any, x: Any) -> Any:
    """Call a net's blocks one after another."""
    for block in model.blocks:
        x = block(x)
    return x


Factory = Callable[[], Network]
FAST = {"vit", "gpt2", "lstm", "twice", "tied", "unet", "in place"}


def without_dropout(model: nn.Module) -> None:
    """Let a network draw no random numbers."""
    for module in model.modules():
        for rate in ("p", "drop_prob"):  # of dropout, and of the depth that is stochastic
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)


def build(name: str) -> Network:
    """Return a network."""
    torch.manual_seed(0)
    made = NETWORKS[name]()
    without_dropout(made.model)
    return made


def images(size: int, rows: int = 4, channels: int = 3) -> Tensor:
    return torch.randn(rows, channels, size, size)


def tokens(length: int = 10, rows: int = 4) -> Tensor:
    return torch.randint(5, 100, (rows, length))


def torchvision(name: str, *options: Any, size: int = 32, **named: Any) -> Factory:
    """Return what makes a classifier of torchvision's, by its module's name, and images."""

    def factory() -> Network:
        model = getattr(pytest.importorskip("torchvision").models, name)
        return Network(model(*options, num_classes=CLASSES, **named), images(size))

    return factory


def vit() -> Network:
    model, batch = torchvision("VisionTransformer", 32, 8, 3, 2, 32, 64)()
    nn.init.normal_(model.heads.head.weight)  # type: ignore[union-attr,arg-type]  # begins as zeros
    return Network(model, batch)


def convnext() -> Network:
    convnext = pytest.importorskip("torchvision").models.convnext
    blocks = [convnext.CNBlockConfig(16, 32, 2), convnext.CNBlockConfig(32, None, 3)]
    return Network(convnext.ConvNeXt(blocks, num_classes=CLASSES), images(32))


def timm(name: str, size: int, **options: Any) -> Factory:
    """Return what makes a classifier of timm's, and images."""

    def factory() -> Network:
        library = pytest.importorskip("timm")
        return Network(library.create_model(name, num_classes=CLASSES, **options), images(size))

    return factory


NO_DROPOUT = dict.fromkeys(
    (
        *("activation_dropout", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop"),
        *("dropout", "dropout_rate", "embd_pdrop", "hidden_dropout", "hidden_dropout_prob"),
        *("resid_pdrop", "seq_classif_dropout"),
        *("layerdrop", "encoder_layerdrop", "decoder_layerdrop"),
    ),
    0.0,
)
HEADS = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100}
TEXT = HEADS | {"intermediate_size": 64, "max_position_embeddings": 32}
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
OPT = TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32}
GPT = {"n_layer": 3, "n_head": 4, "n_embd": 32, "vocab_size": 100, "n_positions": 32}
DISTILBERT = {"n_layers": 3, "n_heads": 4, "dim": 32, "hidden_dim": 64, "vocab_size": 100}
PAIR = {
    **{"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "vocab_size": 100},
    **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    **{"decoder_start_token_id": 0, "pad_token_id": 0},
}
T5 = {
    **{"num_layers": 2, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 100},
    **{"decoder_start_token_id": 0, "pad_token_id": 0},
}
"""Sizes of small transformers, as the configurations of their kinds call them."""


def hugging_face(model: str, batch: Callable[[], Any], **sizes: Any) -> Factory:
    """Return what makes a network of transformers', without dropout or cache, and its batch."""

    def factory() -> Network:
        kind = getattr(pytest.importorskip("transformers"), model)
        config = kind.config_class(**NO_DROPOUT, **sizes)
        config.use_cache = False
        return Network(kind(config), batch())

    return factory


def _text() -> dict[str, Any]:
    return {"input_ids": tokens()}


def _masked_text() -> dict[str, Any]:
    lengths = torch.tensor([10, 6, 8, 9])
    return _text() | {"attention_mask": (torch.arange(10) < lengths[:, None]).long()}


def _text_pair() -> dict[str, Any]:
    return _text() | {"decoder_input_ids": tokens(7)}


def _picture() -> dict[str, Any]:
    return {"pixel_values": images(32)}


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        output, (hidden, _) = self.lstm(self.embedding(text))
        return self.head(output.mean(1) + hidden[-1])  # type: ignore[no-any-return]


class Twice(nn.Module):
    """Calls one block twice, with others between."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for number in (0, 1, 0, 2):
            x = x + self.blocks[number](x)
        return self.head(x)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """Reads its embedding's weights again at the end, and a scale between blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.scale = nn.Parameter(torch.ones(16))
        self.register_buffer("position", torch.linspace(0, 1, 32)[:, None], persistent=False)
        self.position: Tensor
        self.register_buffer("count", torch.zeros(()))
        self.count: Tensor
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text) + self.position[: text.shape[1]]
        if self.training:
            self.count.add_(1)
        for block in self.blocks:
            x = x + torch.tanh(block(x)) * self.scale
        return F.linear(x, self.embedding.weight)


class UNet(nn.Module):
    """Concatenates what went down with what comes up, and its input with both."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in ((1, 4), (4, 8), (8, 8))
        )
        self.up = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in ((16, 8), (16, 4))
        )
        self.last = nn.Conv2d(5, CLASSES, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        image, kept = x, []
        for conv in self.down:
            x = F.relu(conv(x))
            kept.append(x)
            x = F.max_pool2d(x, 2)
        for conv, skip in zip(self.up, kept[::-1], strict=False):
            x = F.interpolate(x, scale_factor=2)
            x = F.relu(conv(torch.cat([x, skip], dim=1)))
        x = F.interpolate(x, size=image.shape[-2:])
        return {"logits": self.last(torch.cat([x, image], dim=1))}


class InPlace(nn.Module):
    """Edits in place what modules gave, and what views show."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(5))
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            y = block(x)
            x = self.act(y) if number % 2 else x + y.relu_()
        x[:, 0] *= 2
        x.view(-1, 4, 4).add_(1)
        return self.head(x)  # type: ignore[no-any-return]


class PackedLstm(nn.Module):
    """Packs texts of several lengths, within one module as recording wants it."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(16, 24, batch_first=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            output, _ = self.lstm(packed)
            whole = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
            return whole[0]

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.encoder = self.Encoder()
        self.head = nn.Linear(24, CLASSES)

    def forward(self, text: Tensor, lengths: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(text), lengths))  # type: ignore[no-any-return]


class Attends(nn.Module):
    """Blocks of ``nn.MultiheadAttention``, whose weights are returned, too."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.MultiheadAttention(16, 4, dropout=0.0, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(x.shape[0])
        for block in self.blocks:
            y, weights = block(x, x, x)
            x, total = x + y, total + weights.square().mean((1, 2))
        return self.head(x), total


class Translates(nn.Module):
    """``nn.Transformer``: an encoder, and a decoder that reads its output in each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.transformer(source, target, tgt_mask=mask))  # type: ignore[no-any-return]


NETWORKS: dict[str, Factory] = {
    **{
        name: torchvision(name)
        for name in (
            *("resnet18", "vgg11_bn", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5"),
            *("efficientnet_b0", "regnet_y_400mf", "resnext50_32x4d"),
        )
    },
    "alexnet": torchvision("alexnet", size=64),
    "squeezenet1_1": torchvision("squeezenet1_1", size=64),
    "googlenet": torchvision("googlenet", size=64, init_weights=False),
    "vit": vit,
    "swin": torchvision("SwinTransformer", [2, 2], 16, [2, 2], [2, 4], [4, 4]),
    "convnext": convnext,
    "densenet": torchvision("DenseNet", 8, (2, 3), 16),
    "maxvit": torchvision("MaxVit", (64, 64), 8, 2, [8, 16], [1, 1], 8, 0.0, size=64),
    **{
        f"timm {name}": timm(name, size, **options)
        for name, size, options in (
            (
                "vit_tiny_patch16_224",
                32,
                {"img_size": 32, "depth": 3, "embed_dim": 32, "num_heads": 2},
            ),
            ("mixer_s32_224", 64, {"img_size": 64}),
            ("mobilevit_xxs", 64, {}),
            ("convnext_atto", 32, {}),
            ("resnet10t", 64, {}),
            (
                "swin_tiny_patch4_window7_224",
                56,
                {"img_size": 56, "embed_dim": 16, "depths": (1, 2, 2, 1)},
            ),
        )
    },
    "gpt2": hugging_face("GPT2LMHeadModel", _text, **GPT),
    "llama": hugging_face("LlamaForCausalLM", _text, **GROUPED),
    "mistral": hugging_face("MistralForCausalLM", _text, **GROUPED, sliding_window=4),
    "qwen2": hugging_face("Qwen2ForCausalLM", _text, **GROUPED),
    "mixtral": hugging_face("MixtralForCausalLM", _text, **GROUPED, num_local_experts=4),
    "opt": hugging_face("OPTForCausalLM", _text, **OPT),
    "bert": hugging_face("BertForSequenceClassification", _text, **TEXT),
    "roberta": hugging_face("RobertaForMaskedLM", _text, **TEXT),
    "llama, masked": hugging_face(
        "LlamaForCausalLM", _masked_text, **GROUPED, attn_implementation="eager"
    ),
    "distilbert": hugging_face("DistilBertForMaskedLM", _text, **DISTILBERT),
    "t5": hugging_face("T5ForConditionalGeneration", _text_pair, **T5),
    "bart": hugging_face("BartForConditionalGeneration", _text_pair, **PAIR),
    "hf vit": hugging_face(
        "ViTForImageClassification", _picture, **TEXT, image_size=32, patch_size=8
    ),
    "lstm": lambda: Network(Lstm(), tokens()),
    "twice": lambda: Network(Twice(), torch.randn(6, 16)),
    "tied": lambda: Network(Tied(), torch.randint(50, (4, 7))),
    "unet": lambda: Network(UNet(), images(16, channels=1)),
    "in place": lambda: Network(InPlace(), torch.randn(6, 16)),
    "packed lstm": lambda: Network(PackedLstm(), (tokens(), torch.tensor([10, 7, 3, 9]))),
    "attention": lambda: Network(Attends(), torch.randn(4, 7, 16)),
    "transformer": lambda: Network(Translates(), (torch.randn(4, 7, 16), torch.randn(4, 5, 16))),
}
