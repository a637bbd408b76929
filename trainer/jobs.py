"""The Celery application that `sage worker` runs."""

from app.settings import Settings
from trainer.running.worker import build

celery = build(Settings.from_env())
