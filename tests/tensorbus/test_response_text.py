import json
import struct

from protocol.messages import Response, TensorRef
from protocol.signature import Signature
from tensorbus.response_text import MOST, response_text

SIGNATURE = Signature("m", 3, "python", 0, False, (), (), "{}", b"")


def shown(datatype, shape, data, shorten=True):
    response = Response(1, [TensorRef("OUT", datatype, shape, 0)], parameters={"k": 1})
    answer = json.loads(response_text(SIGNATURE, "mine", response, [data], shorten))
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("mine", "m", "3")
    assert answer["parameters"] == {"k": 1}
    (output,) = answer["outputs"]
    return output


def test_an_output_is_kserves_json():
    data = struct.pack("<4i", 1, -2, 3, 4)
    assert shown("INT32", (2, 2), data) == {"name": "OUT", "datatype": "INT32", "shape": [2, 2], "data": [1, -2, 3, 4]}


def test_strings_are_shown_as_text_whatever_their_bytes():
    assert shown("BYTES", (2,), b"\5\0\0\0caf\xc3\xa9\1\0\0\0\xff")["data"] == ["café", "\\xff"]


def test_types_that_json_cannot_carry_over_http_are_shown_too():
    assert shown("FP16", (2,), struct.pack("<2e", 0.5, -1))["data"] == [0.5, -1]
    assert shown("BF16", (2,), struct.pack("<f", 1.5)[2:] + struct.pack("<f", -2)[2:])["data"] == [1.5, -2]
    assert shown("BOOL", (2,), b"\0\1")["data"] == [False, True]


def test_long_data_is_shortened_unless_all_is_wanted():
    data = bytes(range(100))
    assert shown("UINT8", (100,), data)["data"] == [*range(MOST), "... 84 more"]
    assert shown("UINT8", (100,), data, shorten=False)["data"] == [*range(100)]
    strings = b"\1\0\0\0a" * 20
    assert shown("BYTES", (20,), strings)["data"] == [*"a" * MOST, "... 4 more"]


def test_an_error_is_the_clients():
    assert json.loads(response_text(SIGNATURE, "", Response(1, [], error=(1, "no")), (), True)) == {"error": "no"}
