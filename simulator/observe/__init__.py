"""What is seen of a run: the timeline table, what is computed from it, and what people look at.

Fed by the code that runs the clock, through `timeline.Timeline.record`; it knows nothing of what it watches.
"""
