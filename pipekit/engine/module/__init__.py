"""A pipelined module for training loops of the user's own, and the order of its backwards."""

from pipekit.engine.module.backward_order import Place as Place
from pipekit.engine.module.backward_order import link as link
