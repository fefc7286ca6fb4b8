"""What makes several of PipeDream's claims miss, by the name that they share in the report."""

TOO_FEW_IN_FLIGHT = "NOAM leaves no minibatch for the links"
LINK_TIME = "time on links"
NOMINAL = "the fitted bandwidth"
GUESSED_LAYERS = "S2VT's layers, which are ours, in the fit of Cluster-A's bandwidth"
OWN_BANDWIDTH = "one bandwidth for all networks of a cluster"
PLAN = "our planner's choice"
TIMES = "the roofline's seconds"
