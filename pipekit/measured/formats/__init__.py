"""A reader for each format: a file is recognised by its content."""
