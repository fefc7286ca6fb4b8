"""Features of a worker's run, a file each."""
