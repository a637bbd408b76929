"""The Celery application that `sage worker` runs."""

from app.base.settings import Settings
from trainer.worker.launcher import build

celery = build(Settings.from_env())
