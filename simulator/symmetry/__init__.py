"""Floor 7, which ranks stand for which."""
