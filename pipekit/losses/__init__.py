"""Losses: which one is meant, what it is a mean over, by how much it is scaled."""
