"""The sets, a file each: row to shape, layout, machine and framework, to a prediction."""
