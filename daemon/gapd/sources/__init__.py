"""Where frames come from. Every source gives `gapd.measured.windows.Frames` in SI units."""
