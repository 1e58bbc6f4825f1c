"""The same tables and charts for the terminal, HTML, files and notebooks."""
