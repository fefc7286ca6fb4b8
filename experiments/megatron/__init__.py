"""What the notebook of Megatron's interleaved schedule computes (Narayanan et al., SC '21).

Letters are the paper's (section 3.1): p devices of a pipeline, v stages ("model chunks") on each, m
microbatches of a batch; n GPUs; t and d the sizes of tensor and data parallelism; B sequences of a
batch, b of a microbatch; l layers, h hidden, s tokens of a sequence, V tokens of the vocabulary.
"""
