"""Room for the code of notebooks while the site is built: their pages have no table of contents beside it."""

from typing import Any


def on_page_markdown(markdown: str, page: Any, **kwargs: object) -> str:
    """Hide the table of contents of the gallery's pages; MkDocs calls this for every page."""
    if page.file.src_uri.startswith("gallery/"):
        page.meta["hide"] = ["toc"]
    return markdown
