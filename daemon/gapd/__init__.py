"""gapd keeps a robot's simulator true to the robot: the robot side."""

__version__ = "0.1.0"
