"""Floor 13, scenarios and what is done with them: simulate, sweep, compare with what is published."""
