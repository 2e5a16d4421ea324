"""Streams of token ids: files, shards, windows, n-grams."""
