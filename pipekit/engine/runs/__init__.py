"""The runs of a pipeline: its stages between them, its tables, workers and batches."""
