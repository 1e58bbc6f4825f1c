"""What is learned and measured: problems, losses and metrics, and how the loss changes (`adapt_loss.py`, P3)."""
