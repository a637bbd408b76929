"""Training runs as processes: claimed from the table, kept alive, started again, their failures named."""
