"""Networks by name, and a network as one flat vector."""
