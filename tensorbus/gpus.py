"""Which GPUs models may have, found without CUDA: by the device files that this process may open."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping


def usable(environ: Mapping[str, str] = os.environ, devices: str = "/dev") -> tuple[int, ...]:
    """Their CUDA device ids: 0, 1, ... whatever numbers the files have, since CUDA counts only what it is let see.

    CUDA_VISIBLE_DEVICES names some of them, by number or by UUID; CUDA stops at the first that is not there.
    """
    try:
        names = [name for name in os.listdir(devices) if re.fullmatch(r"nvidia[0-9]+", name)]
    except OSError:
        return ()
    count = sum(os.access(os.path.join(devices, name), os.R_OK | os.W_OK) for name in names)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or count == 0:
        return tuple(range(count))
    chosen: list[str] = []
    for name in map(str.strip, visible.split(",")):
        if name in chosen or not (re.match("(GPU|MIG)-", name) or (name.isdecimal() and int(name) < count)):
            break
        chosen.append(name)
    return tuple(range(len(chosen)))
