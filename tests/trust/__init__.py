"""Tools that ask how far the simulator can be trusted: a second implementation of a run, and mutants of the first."""
