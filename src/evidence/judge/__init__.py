"""Judge the changes of a night, one after the other: run both sides with the same seeds, and keep what is shown."""
