"""One module for each tool: `python src NAME …` calls its main(argv), which returns the exit status."""
