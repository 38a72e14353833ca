"""What to deploy: every layout of a model on a machine that fits, the best within a service level, and why."""
