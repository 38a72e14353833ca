"""What one rank does: recorded programs, collectives, roles, and their replay on a machine."""
