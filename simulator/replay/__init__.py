"""Floor 8, recorded programs compiled into tapes, their rendezvous, and the run."""
