"""A recorded module as a row of layers, any consecutive ones of which make a stage."""
