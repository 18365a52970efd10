"""Every message on every wire, typed: what does not decode into one of these is refused at the door."""
