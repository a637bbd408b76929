"""Servers of other people, installed from the registries, called by tasks. `make test-servers` runs them."""
