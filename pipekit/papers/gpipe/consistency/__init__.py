"""The same training for any number of partitions: sections 3.2 and 4.3."""
