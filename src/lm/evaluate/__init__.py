"""What a trained model writes."""
