"""Every tunable number of an MJCF as a parameter with bounds, so that nobody has to pick by hand."""
