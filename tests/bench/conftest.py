"""What pytest must not import: it runs in an environment of its own, where TRL is installed."""

collect_ignore = ["update_trl.py"]
