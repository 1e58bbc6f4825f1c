"""Tables of rows: files, columns, encoding, new rows."""
