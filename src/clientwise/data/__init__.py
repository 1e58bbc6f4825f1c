"""Data: datasets by name, partitions over clients, and the federated data an engine reads."""
