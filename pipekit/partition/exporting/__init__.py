"""What a forward of any module does, as torch.export tells it: operators, for all sizes at once."""
