"""Meshes of ranks, the borders between placements, expert exchanges, and the memory ledger that follows."""
