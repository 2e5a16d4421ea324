"""Files of other programs: .npy, dump-*.pkl, Hugging Face."""
