"""One process a worker, on one machine, started from a script or a notebook kernel."""
