"""How the costs of a deployment grow with what it holds and does; see `python -m tests.bench.growth --help`."""
