"""Monolane's engine: everything about models and speed, usable without the web."""
