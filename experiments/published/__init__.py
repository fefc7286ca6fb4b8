"""Published trainings predicted: sets of rows that others measured, none of which is kept here."""
