"""Floor 4, one die: kernel laws, streams, cores, L2, and the memory ledger."""
