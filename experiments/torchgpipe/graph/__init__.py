"""Functions, graphs, orders and portals, found in runs: sections 2 and 3, Figures 1 to 6."""
