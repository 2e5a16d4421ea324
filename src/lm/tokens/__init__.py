"""Streams of token ids: files, windows, n-grams."""
