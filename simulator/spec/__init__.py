"""Floor 2, what a machine and a model are, as typed TOML: every number with its unit, kind and source."""
