"""Benchmarks of Braid itself: each case is measured alone in a process of its own. They never judge a test."""
