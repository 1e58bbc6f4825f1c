"""What must hold under secrecy: the accountant of differential privacy."""
