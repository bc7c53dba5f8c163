"""Serving private responses over HTTP."""

from lightning_pac.serve.api_keys import APIKey, APIKeys
from lightning_pac.serve.server import as_tensor, build_server, serve

__all__ = ["APIKey", "APIKeys", "as_tensor", "build_server", "serve"]
