"""Reads the text of a picture: one model finds the lines, another one reads each of them.

    python client.py --characters models/text_recognition/characters.txt

The picture is drawn here, so that what should be read is known. Lines are expected to be level and apart.
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.http as httpclient
from PIL import Image, ImageDraw, ImageFont

TEXT = ["Hello tensorbus", "Reading pictures", "1234567890"]


def draw(lines):
    picture = Image.new("RGB", (640, 80 + 80 * len(lines)), (235, 240, 245))
    pen = ImageDraw.Draw(picture)
    for number, line in enumerate(lines):
        pen.text((40, 50 + 80 * number), line, fill=(20, 20, 60), font=ImageFont.load_default(40))
    return picture


def tensor(picture, width, height):
    """A batch of one, planes of blue, green and red between -1 and 1."""
    pixels = np.asarray(picture.resize((width, height)), np.float32)[:, :, ::-1]
    return np.ascontiguousarray((pixels / 127.5 - 1).transpose(2, 0, 1)[None])


def infer(client, model, array):
    given = httpclient.InferInput("x", array.shape, "FP32")
    given.set_data_from_numpy(array)
    result = client.infer(model, [given])
    return result.as_numpy(result.get_response()["outputs"][0]["name"])[0]


def runs(flags):
    """Begin and end of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    return edges.reshape(-1, 2).tolist()


def boxes(heat):
    """Of the lines, from the map of how likely each pixel is in the middle of text."""
    for top, bottom in runs((heat > 0.3).any(axis=1)):
        columns = np.flatnonzero((heat[top:bottom] > 0.3).any(axis=0))
        margin = (bottom - top) * 0.6  # the map shows lines thinner than they are
        if bottom - top > 3:
            yield columns[0] - margin, top - margin, columns[-1] + margin, bottom + margin


def detect(client, picture):
    width, height = (max(32, round(side / 32) * 32) for side in picture.size)
    heat = infer(client, "text_detection", tensor(picture, width, height))[0]
    across, down = picture.width / width, picture.height / height
    for left, top, right, bottom in boxes(heat):
        yield picture.crop((max(0, left * across), max(0, top * down), right * across, bottom * down))


def recognize(client, line, characters):
    width = max(48, round(48 * line.width / line.height))
    best = infer(client, "text_recognition", tensor(line, width, 48)).argmax(axis=1)
    # A letter may be seen several times running; between two that are the same there is a blank, number 0.
    seen = [number for number, before in zip(best, [0, *best[:-1]], strict=True) if number != before and number]
    return "".join(characters[number - 1] for number in seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000")
    parser.add_argument("--characters", type=Path, required=True)
    arguments = parser.parse_args()
    characters = [*arguments.characters.read_text(encoding="utf-8").split("\n"), " "]
    with httpclient.InferenceServerClient(arguments.url) as client:
        for line in detect(client, draw(TEXT)):
            print(recognize(client, line, characters))


if __name__ == "__main__":
    main()
