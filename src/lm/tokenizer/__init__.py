"""Tokenizers: build one, load one, encode documents."""
