"""Errors, files, names of paths and typed parameters, which every other package uses."""
