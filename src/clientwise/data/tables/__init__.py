"""CSV and Parquet: reading files, columns, their encoding as inputs of a network, and rows to predict."""
