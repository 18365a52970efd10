"""From windows to a decision: fit, structure, check. Time is an argument; only report and picture write."""
