"""Tokenizers: built, loaded, and run over documents."""
