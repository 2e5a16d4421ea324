"""The record of a run (dvc.lock, parameters, Git and DVC), and other code that several tools share."""
