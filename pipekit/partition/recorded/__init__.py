"""Any module as a row of layers: its blocks untouched, the operations between them recorded."""
