"""Numbers of results: curves, points, bars and maps."""
