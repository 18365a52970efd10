"""The simulation host: takes robots' corrections and escalations, and gives simulators the newest values. No torch."""
