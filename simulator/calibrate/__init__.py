"""Floor 14, fits of kernel families on public tables."""
