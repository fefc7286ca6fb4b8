"""What Table 1's predictions and runs say of the paper's claims (sections 1, 5.2 and 5.3)."""
