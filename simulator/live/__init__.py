"""Floor 9, host threads, proxies and network cards as processes on the same clock."""
