"""Runs as a page of HTML: one file with its tables, charts and timelines, read without a network."""
