"""Messages over torch.distributed: between accelerators, and under torchrun between CPUs too."""
