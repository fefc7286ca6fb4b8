"""How workers reach one another: threads, processes, torch.distributed."""
