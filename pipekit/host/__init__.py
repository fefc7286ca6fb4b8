"""The machine that runs all this: its cores, operator threads, garbage collection, provenance."""
