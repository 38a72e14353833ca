"""Floor 1, the three ways in which time passes: latency (clock), cores, and bytes (flows). No chip is known here."""
