"""Data: datasets by name, partitions over clients, and the federated data an engine reads.

`datasets.py` lists the datasets, `partition.py` the partitions, `division.py` applies one, and `federated.py` is the
result. `published/` has the published datasets, `tables/` CSV and Parquet, and `own.py` a user's own samples.
"""
