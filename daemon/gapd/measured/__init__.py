"""Measured data: frames become windows, faults are gated, evidence is kept."""
