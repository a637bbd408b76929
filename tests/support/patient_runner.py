"""`sage runner` for tests on busy machines. Its watchdog is patient: nothing replaces a runner that it ends."""

from app import cli
from app.processes import runner

if __name__ == "__main__":
    runner.WATCHDOG_SECONDS = 100.0
    cli.main(["runner"])
