"""The audit log and its page."""
