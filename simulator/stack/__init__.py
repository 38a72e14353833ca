"""Which kernels a piece of a transformer layer is made of on one rank, by software stack; never time."""
