"""The robot's MuJoCo model: its parameters, and how channels of data bind to it."""
