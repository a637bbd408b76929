"""How the app asks the trainer for work: by name. The app never imports the trainer."""

from uuid import UUID

from celery import Celery

TRAIN = "trainer.train"


def ring(celery: Celery, run_id: UUID) -> None:
    """Ask for one training run. Call it after the commit that stored the run: the row is what counts."""
    celery.send_task(TRAIN, args=[str(run_id)], queue="training")
