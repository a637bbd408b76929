"""A running server over REST, for the commands."""
