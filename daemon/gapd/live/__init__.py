"""The daemon: watches every window, fits when there is a reason, keeps and tells what it decided."""
