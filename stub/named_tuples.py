"""NamedTuples, made where it happens for each tensor."""

from __future__ import annotations

# ``new(Kind, (field, ...))``, with all the fields: half the time of ``Kind(field, ...)``, which is a Python function.
new = tuple.__new__
