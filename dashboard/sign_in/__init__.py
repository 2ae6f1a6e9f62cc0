"""Signing in to the dashboard without being staff, and a limit on guesses for every way in."""
