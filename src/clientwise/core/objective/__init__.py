"""What is learned and measured: problems, losses, metrics."""
