"""What the quickstart trains, compares and draws."""
