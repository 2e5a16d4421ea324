"""What a trained model knows, and what it writes."""
