"""What order, streams and portals are good for: section 4.1, Table 1, Figure 7."""
