"""What an answer is worth: of a call the same JSON, of a value the same text, of a fact that it is said."""

from __future__ import annotations

import json
from typing import Any


def worth(text: str, row: dict[str, Any]) -> bool:
    """Whether an answer is right."""
    said, wanted = text.strip(), row["answer"]
    if row["group"] == "tool":
        try:
            return bool(json.loads(said) == json.loads(wanted))
        except ValueError:
            return False
    return wanted in said if row["group"] == "facts" else said == wanted
