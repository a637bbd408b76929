"""The default environment of the commands: that of the demo project."""

ENVIRONMENT = "office"
