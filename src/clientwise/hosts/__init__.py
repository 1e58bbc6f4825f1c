"""What every host of clients shares: one guard, one weighing, one record. See docs/aggregator.md."""
