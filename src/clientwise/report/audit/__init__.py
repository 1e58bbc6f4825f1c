"""Every weight of one round, and what changed it."""
