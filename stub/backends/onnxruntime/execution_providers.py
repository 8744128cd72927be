"""What a session runs on, by preference: the accelerators that a configuration asks for, CUDA on a GPU, the CPU."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple, Union

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_ACCELERATORS = {"cuda": CUDA, "openvino": "OpenVINOExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}

Provider = Union[str, Tuple[str, Dict[str, str]]]


def providers(config: Dict[str, Any], kind: str, device: str, available: Sequence[str]) -> List[Provider]:
    """``available`` are those of the installed ONNX Runtime. Raises ValueError for an accelerator that is not."""
    asked = config.get("optimization", {}).get("execution_accelerators", {})
    found: List[Provider] = []
    for accelerator in asked.get("{}_execution_accelerator".format("gpu" if kind == "GPU" else "cpu"), []):
        name = _ACCELERATORS.get(accelerator["name"])
        if name not in available:
            text = "unknown Execution Accelerator '{}' is requested: model '{}', this onnxruntime has {}"
            raise ValueError(text.format(accelerator["name"], config["name"], ", ".join(available)))
        found.append((str(name), accelerator.get("parameters", {})))
    if kind == "GPU" and CUDA in available:
        found.append((CUDA, {"device_id": device}))
    return [*found, CPU]
