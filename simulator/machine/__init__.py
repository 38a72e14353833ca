"""A machine: its typed file, its fabric, the memory of a rank, and what kernels cost on it."""
