"""What everything else rests on: errors, files, typed parameters."""
