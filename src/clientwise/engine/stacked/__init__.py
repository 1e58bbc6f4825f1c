"""The stacked backend: many models of one architecture as one batched computation."""
