"""The record of a run: dvc.lock, parameters, Git and DVC; and what else several tools share."""
