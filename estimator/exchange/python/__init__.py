"""Python scripts and notebooks: read with `ast`, never imported and never run."""
