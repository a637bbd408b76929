"""What the commands use where no environment is named: the one of the demo project."""

ENVIRONMENT = "office"
