"""The gap between simulation and measurement: exact replays, and derivatives by the parameters."""
