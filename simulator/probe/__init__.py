"""`braid probe`: measures on a GPU what a machine file assumes, and holds what Braid says of two streams against it."""
