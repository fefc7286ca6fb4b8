"""Networks as flat sequences of layers, ready to be cut into stages anywhere."""

from pipekit.losses.losses import token_loss
from pipekit.models.amoebanet import amoebanet_d
from pipekit.models.published import PUBLISHED, Published
from pipekit.models.s2vt import s2vt
from pipekit.models.small import convnet, image_mlp, mlp
from pipekit.models.transformer import LAYOUTS, GPTLayout, bert_large, gpt
from pipekit.models.unet import unet
from pipekit.models.vision import alexnet, inception_v3, resnet50, resnet101, vgg16

__all__ = [
    "LAYOUTS",
    "PUBLISHED",
    "GPTLayout",
    "Published",
    "alexnet",
    "amoebanet_d",
    "bert_large",
    "convnet",
    "gpt",
    "image_mlp",
    "inception_v3",
    "mlp",
    "resnet50",
    "resnet101",
    "s2vt",
    "token_loss",
    "unet",
    "vgg16",
]
