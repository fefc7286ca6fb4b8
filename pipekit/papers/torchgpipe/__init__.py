"""What the notebooks of torchgpipe compute: one module for each group of tables and figures."""
