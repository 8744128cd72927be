"""Model versions as text, as gRPC and models carry them."""

from __future__ import annotations

import re

from .errors import InvalidArgument


def parse_version(text: str) -> int:
    """ "" is -1, and like C++'s stol what follows the digits is ignored. Raises InvalidArgument."""
    if not text:
        return -1
    digits = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", text)
    version = int(digits[1][:24]) if digits else 2**63
    if not -(2**63) <= version < 2**63:
        raise InvalidArgument(
            "failed to get model version from specified version string '{}' (details: stol), version should be an "
            "integral value > 0".format(text)
        )
    if version < 0:
        raise InvalidArgument(
            "invalid model version specified '{}' , version should be an integral value > 0".format(text)
        )
    return version
