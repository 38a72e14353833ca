"""Floor 5, the language of rank programs, and what they record."""
