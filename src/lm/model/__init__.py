"""The Gemma 3 decoder, its weights on disk, and its losses."""
