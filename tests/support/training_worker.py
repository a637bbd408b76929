"""The product's worker, with simulated runs: `celery -A tests.support.training_worker:celery worker`."""

import sys

from app.base.settings import Settings
from trainer.worker.launcher import build

celery = build(Settings.from_env(), (sys.executable, "-m", "tests.support.training_process"))
