"""Floor 6, collectives: algorithms as phases of transfers, and the engines that drive them."""
