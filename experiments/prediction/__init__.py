"""How good the predictions of seconds and bytes are: what the notebook of that name runs."""
