"""Serving private responses over HTTP."""
