"""What a step consists of: a term a file, each with its source."""
