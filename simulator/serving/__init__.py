"""Floor 14, requests over time: a service, on step times that come from the timeline."""
