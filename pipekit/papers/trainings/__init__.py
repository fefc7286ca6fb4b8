"""Whole trainings: run, kept on disk, compared with an ordinary loop or the equations."""
