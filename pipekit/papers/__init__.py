"""What the notebooks of each paper compute."""
