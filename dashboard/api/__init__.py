"""The dashboard's API: read-only JSON of what its pages show, and a badge. docs/api.md describes it."""
