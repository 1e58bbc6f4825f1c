"""Data: datasets by name, partitions over clients, and the federated data an engine reads.

`datasets/` has the datasets, `partition.py` the partitions, `division.py` applies one, and `federated.py` is the
result. A user's own samples are read by `own.py`: arrays and PyTorch datasets by `arrays.py`, files and frames by
`table.py`. `folder.py` is what reading files takes.
"""
