"""What torchgpipe's notebooks compute (Kim et al., "torchgpipe", 2020).

Letters are the paper's: m microbatches on n devices, here called stages, of which each has a
worker; U-Net (B, C) has B convolutions a cell and at first C channels.
"""
