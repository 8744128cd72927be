"""Makes a model repository of the two models that the package rapidocr-onnxruntime brings.

    python make_repository.py models

Neither needs a config.pbtxt: the backend reads it all from the graph.
"""

import argparse
import importlib.util
import shutil
from pathlib import Path

import onnxruntime

MODELS = {"text_detection": "ch_PP-OCRv4_det_infer.onnx", "text_recognition": "ch_PP-OCRv4_rec_infer.onnx"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", type=Path)
    repository = parser.parse_args().repository
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    if package is None or package.origin is None:
        raise SystemExit("please install rapidocr-onnxruntime, see requirements.txt")
    for model, file in MODELS.items():
        version = repository / model / "1"
        version.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(package.origin).parent / "models" / file, version / "model.onnx")
    recognition = repository / "text_recognition"
    session = onnxruntime.InferenceSession(recognition / "1" / "model.onnx", providers=["CPUExecutionProvider"])
    characters = session.get_modelmeta().custom_metadata_map["character"]
    (recognition / "characters.txt").write_text(characters, encoding="utf-8")


if __name__ == "__main__":
    main()
