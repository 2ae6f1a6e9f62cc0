"""Geometry of the charts that the server draws as SVG."""
