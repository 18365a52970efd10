"""gaptrain: the simulation-host side. It trains the gap model and exports the bundle that gapd loads."""
