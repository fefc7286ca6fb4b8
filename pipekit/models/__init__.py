"""Networks as flat sequences of layers, ready to be cut into stages anywhere."""

from pipekit.models.small import NAMED, convnet, image_mlp, mlp

__all__ = ["NAMED", "convnet", "image_mlp", "mlp"]
