"""The largest U-Net, and what recomputation saves: sections 2.1 and 4.2.2, Table 3."""
