"""The methods: each a function from counts to a table of tasks."""
