"""What pytest leaves out here."""

collect_ignore = ["render.py"]  # needs Helm, which only its own environment has
