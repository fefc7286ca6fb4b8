"""How workers reach one another: threads of one process, processes, torch.distributed."""
