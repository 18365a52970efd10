"""A gap-model bundle as one HTML page: what its parameters move, what can be corrected, how good the network is."""
