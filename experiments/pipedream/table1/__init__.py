"""Table 1 and Figure 13 of PipeDream, predicted from profiles."""
