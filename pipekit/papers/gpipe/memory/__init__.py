"""The largest network that fits: sections 3.3 and 4.1, Table 1."""
