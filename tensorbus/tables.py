"""The tables of the start-up log, shaped as tritonserver's, since tools read them.

+---------+---------+--------+
| Model   | Version | Status |
+---------+---------+--------+
| add_sub | 1       | READY  |
+---------+---------+--------+
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from protocol.signature import IndexEntry
from tensorbus.flag_values import RateLimitResource
from tensorbus.settings import ServeSettings

_UNKNOWN_WIDTH = 500  # of an output that is no terminal


def repository_agents_table() -> str:
    """Always empty: there are no repository agents here."""
    return table(("Repository Agent", "Path"), [])


def backends_table(backends: Mapping[str, str], settings: ServeSettings) -> str:
    """One row for each backend in use, by name with the path it is served from."""
    return table(
        ("Backend", "Path", "Config"),
        [(name, path, _backend_config(name, settings)) for name, path in sorted(backends.items())],
    )


def models_table(index: Iterable[IndexEntry]) -> str:
    """All versions of all models with their state, and the reason of those that did not load."""
    return table(("Model", "Version", "Status"), [_model_row(entry) for entry in index])


def options_table(settings: ServeSettings, version: str, extensions: Sequence[str]) -> str:
    rows = [
        ("server_id", settings.id),
        ("server_version", version),
        ("server_extensions", " ".join(extensions)),
        *((f"model_repository_path[{i}]", path) for i, path in enumerate(settings.model_repository)),
        ("model_control_mode", f"MODE_{settings.model_control_mode.upper()}"),
        *((f"startup_models_{i}", name) for i, name in enumerate(settings.load_model)),
        ("strict_model_config", str(int(settings.disable_auto_complete_config))),
        ("model_config_name", settings.model_config_name),
        ("rate_limit", "OFF" if settings.rate_limit == "off" else "EXEC_COUNT"),
        *((f"rate_limit_resource[{i}]", _resource(one)) for i, one in enumerate(settings.rate_limit_resource)),
        ("pinned_memory_pool_byte_size", str(settings.pinned_memory_pool_byte_size)),
        ("min_supported_compute_capability", f"{settings.min_supported_compute_capability:.1f}"),
        ("strict_readiness", str(int(settings.strict_readiness))),
        ("exit_timeout", str(settings.exit_timeout_secs)),
        ("cache_enabled", str(int(settings.response_cache_nbytes > 0))),
    ]
    return table(("Option", "Value"), rows)


def _resource(resource: RateLimitResource) -> str:
    device = -1 if resource.device is None else resource.device
    return f'{{"name":"{resource.name}", "count":{resource.available} "device":{device}}}'


def _backend_config(name: str, settings: ServeSettings) -> str:
    values = {
        "auto-complete-config": str(not settings.disable_auto_complete_config).lower(),
        "backend-directory": settings.backend_directory,
        "default-max-batch-size": "4",
    }
    return json.dumps({"cmdline": values | settings.backend_values(name)}, separators=(",", ":"))


def _model_row(entry: IndexEntry) -> tuple[str, str, str]:
    if entry.version < 0:
        return entry.name, "-", "Not loaded: " + (entry.reason or "No model version was found")
    return entry.name, str(entry.version), f"{entry.state}: {entry.reason}" if entry.reason else entry.state


# --- the shape ----------------------------------------------------------------------------------------------------


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """A table of at most ``width`` characters, by default those of the terminal on stdout. Cells may have lines."""
    cells = [[_lines(cell) for cell in row] for row in (headers, *rows)]
    needed = [max(len(line) for row in cells for line in (*row[column], "")) for column in range(len(headers))]
    widths = _share(needed, _terminal_width() if width is None else width)
    ruler = "".join(f"+{'-' * (w + 2)}" for w in widths) + "+\n"
    head, *body = [_row(row, widths) for row in cells]
    return ruler + head + ruler + "".join(body) + ruler


def _terminal_width() -> int:
    try:
        return os.get_terminal_size(1).columns or _UNKNOWN_WIDTH
    except OSError:
        return _UNKNOWN_WIDTH


def _share(needed: Sequence[int], width: int) -> list[int]:
    """Column widths: narrow columns get what they need, and what they leave is shared among the wider ones."""
    columns = len(needed)
    # "| " before and " " after each cell, "|" at the end; the rounding is tritonserver's.
    left = float(max(width - 3 * columns - 1, columns) // columns * columns)
    widths = list(needed)
    for rank, column in enumerate(sorted(range(columns), key=needed.__getitem__)):
        share = min(float(needed[column]), left / (columns - rank))
        widths[column] = max(int(share), 1)
        left -= share
    return widths


def _lines(cell: str) -> list[str]:
    # What a model's exception says must not move the cursor.
    return [re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", line) for line in cell.removesuffix("\n").split("\n")]


def _row(row: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    columns = [[*_wrap(lines, width)] for lines, width in zip(row, widths, strict=True)]
    height = max(len(lines) for lines in columns)
    padded = [
        [line.ljust(width) for line in lines] + [" " * width] * (height - len(lines))
        for lines, width in zip(columns, widths, strict=True)
    ]
    return "".join("| " + " | ".join(line) + " |\n" for line in zip(*padded, strict=True))


def _wrap(lines: Iterable[str], width: int) -> Iterable[str]:
    for line in lines:
        yield from (line[start : start + width] for start in range(0, len(line) or 1, width))
