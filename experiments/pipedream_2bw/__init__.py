"""What PipeDream-2BW's notebooks compute (Narayanan et al., ICML 2021), where a cell is too short.

Letters are the paper's: d stages of a pipeline (its depth), w parallel pipelines (its width), m
microbatches of a pipeline in a batch, b sequences of a microbatch.
"""
