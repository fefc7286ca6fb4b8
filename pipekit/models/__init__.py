"""Networks as flat sequences of layers, ready to be cut into stages anywhere."""

from pipekit.losses.losses import token_loss as token_loss
from pipekit.models.amoebanet import amoebanet_d as amoebanet_d
from pipekit.models.published import PUBLISHED as PUBLISHED
from pipekit.models.published import Published as Published
from pipekit.models.s2vt import s2vt as s2vt
from pipekit.models.small import convnet as convnet
from pipekit.models.small import image_mlp as image_mlp
from pipekit.models.small import mlp as mlp
from pipekit.models.transformer import LAYOUTS as LAYOUTS
from pipekit.models.transformer import GPTLayout as GPTLayout
from pipekit.models.transformer import bert_large as bert_large
from pipekit.models.transformer import gpt as gpt
from pipekit.models.unet import unet as unet
from pipekit.models.vision import alexnet as alexnet
from pipekit.models.vision import inception_v3 as inception_v3
from pipekit.models.vision import resnet50 as resnet50
from pipekit.models.vision import resnet101 as resnet101
from pipekit.models.vision import vgg16 as vgg16
