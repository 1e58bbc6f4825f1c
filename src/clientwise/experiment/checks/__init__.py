"""What is refused or doubted before a run."""
