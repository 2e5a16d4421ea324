"""Check the parameters before a stage, and prepare a run: `python src check_parameters`."""
