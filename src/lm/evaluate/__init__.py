"""Evaluate a trained model: its losses and its samples."""
