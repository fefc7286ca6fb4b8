"""The pipeline itself: sections 2.2 and 3, and Figure 2."""
