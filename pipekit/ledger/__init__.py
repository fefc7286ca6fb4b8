"""The papers' claims: batches of notebooks, criteria, outcomes and the report."""
