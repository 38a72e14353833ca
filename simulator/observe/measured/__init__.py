"""Measured traces as timelines: one file per format, the same table from each."""
