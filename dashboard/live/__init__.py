"""Notifications to open pages that something changed."""
