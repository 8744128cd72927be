"""Asks the add_sub model of a running server, by Triton's own client.

    python examples/client.py [host:port]
"""

import sys

import numpy as np
import tritonclient.http as http


def main(url):
    left = np.array([1, 2, 3, 4], dtype=np.float32)
    right = np.array([10, 20, 30, 40], dtype=np.float32)
    inputs = [http.InferInput("INPUT0", [4], "FP32"), http.InferInput("INPUT1", [4], "FP32")]
    inputs[0].set_data_from_numpy(left)
    inputs[1].set_data_from_numpy(right)
    with http.InferenceServerClient(url) as client:
        result = client.infer("add_sub", inputs)
    total, difference = result.as_numpy("OUTPUT0"), result.as_numpy("OUTPUT1")
    print(f"{left} + {right} = {total}")
    print(f"{left} - {right} = {difference}")
    if not (np.array_equal(total, left + right) and np.array_equal(difference, left - right)):
        sys.exit("the answer is wrong")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000")
