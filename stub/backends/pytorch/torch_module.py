"""A module of a file: TorchScript, or what ``torch.export`` or AOTInductor made of one, as a function of tensors."""

from __future__ import annotations

import inspect
import zipfile
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple

import torch


class Module(NamedTuple):
    """``arguments`` are the names of what ``forward`` takes, [] if they are not known; ``keywords`` those that it takes
    by name alone."""

    forward: Callable[..., Any]
    arguments: List[str]
    keywords: FrozenSet[str] = frozenset()

    def __call__(self, tensors: Dict[int, Any]) -> Any:
        """``tensors`` by place. Those behind a missing one go by name."""
        positional: List[Any] = []
        named: Dict[str, Any] = {}
        for place, tensor in sorted(tensors.items()):
            name = self.arguments[place] if place < len(self.arguments) else ""
            if place == len(positional) and name not in self.keywords:
                positional.append(tensor)
            elif name:
                named[name] = tensor
            else:
                raise ValueError("there is an input for argument {}, but none for {}".format(place, len(positional)))
        return self.forward(*positional, **named)


def load(path: str, device: Any) -> Module:
    """``device`` None leaves the module where it was saved."""
    if not path.endswith(".pt2"):
        script = torch.jit.load(path, map_location=device)
        script.eval()
        return Module(script, [argument.name for argument in script.forward.schema.arguments][1:])
    with zipfile.ZipFile(path) as archive:
        compiled = any("/aotinductor/" in name for name in archive.namelist())
    if compiled:
        return Module(torch._inductor.aoti_load_package(path), [])
    program = torch.export.load(path)
    if device is not None and device.type != "cpu":
        program = torch.export.passes.move_to_device_pass(program, device)
    module = program.module()
    keywords = program.example_inputs[1] if program.example_inputs else {}
    return Module(module, list(inspect.signature(module.forward).parameters), frozenset(keywords))
