"""The worker of the product, with runs that only pretend: `celery -A tests.training_worker:celery worker`."""

import sys

from app.settings import Settings
from trainer.running.worker import build

celery = build(Settings.from_env(), (sys.executable, "-m", "tests.training_process"))
