"""The link with the simulation host: an outbox on disk and authenticated messages."""
