"""Published datasets, one file each."""
