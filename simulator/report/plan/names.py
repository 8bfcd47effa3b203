"""Names that Kubernetes takes."""

import re
from typing import Final

_LABEL: Final = 63
"""Longest name of a Service (RFC 1035 label, as Kubernetes asks for)."""


def service_name(text: str) -> str:
    """A name that Kubernetes takes for a Service: a DNS label of RFC 1035 (a letter, then letters, digits, -)."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not name[:1].isalpha():
        name = f"plan-{name}"
    return name[:_LABEL].strip("-")
