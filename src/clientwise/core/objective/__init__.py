"""What is learned and measured: problems, losses and metrics."""
