"""Write one page about a run: `python src report`."""
