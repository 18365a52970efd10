"""The trained gap model: a bundle that is verified before it is loaded."""
