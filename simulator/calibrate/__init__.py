"""Floor 15, fits of kernel families on public tables."""
