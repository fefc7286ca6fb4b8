"""PipeDream-2BW and PipeDream-Flush, reproduced: what notebooks/pipedream_2bw computes."""
