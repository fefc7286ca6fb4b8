"""What the notebooks of the GPipe paper compute."""
