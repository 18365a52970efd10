"""Where frames come from. Every source gives `gapd.windows.Frames` in SI units."""
