"""The Celery application that `sage worker` runs. Idle until there is training to do."""

from app.queue import open_broker
from app.settings import Settings

celery = open_broker(Settings.from_env())
