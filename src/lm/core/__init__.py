"""Errors, files and typed parameters, which every other room uses."""
