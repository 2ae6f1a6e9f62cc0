"""The Django project: settings, routes and the Celery application; nothing of the product itself."""

from config.celery import app as celery_app

__all__ = ["celery_app"]
