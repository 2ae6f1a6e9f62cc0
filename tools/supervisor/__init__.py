"""All that a running Monolane consists of, started and stopped as one: `python -m tools.supervisor`."""
