"""JSON as protobuf's parser takes it for configurations: looser than the standard.

Strings may stand in single quotes and span lines, keys may be bare words, the last element may have a comma behind it,
and a backslash before any other character is nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

# Linear in the text, whatever it is: a word is one token, and so is a string that does not end.
_TOKEN = re.compile(
    r"""(?P<string>(?P<quote>["'])(?:(?!(?P=quote))[^\\]|\\.)*+(?P=quote)?+)
      | (?P<word>[A-Za-z_$][\w$]*+)
      | [{\[,]\s*+,
      | (?P<last>,(?=\s*+[}\]]))
      | [^"']""",
    re.VERBOSE | re.DOTALL,
)
_COLON = re.compile(r"\s*+:")
_WORDS = frozenset({"true", "false", "null"})


def loads(text: str) -> Any:
    """Raises ValueError, or RecursionError."""
    try:
        return json.loads(text, strict=False)
    except json.JSONDecodeError:
        return json.loads(_TOKEN.sub(_strictly, text), strict=False)


def _strictly(found: re.Match[str]) -> str:
    token = found[0]
    if found["last"]:
        return ""
    if found["word"]:
        is_key = token not in _WORDS and _COLON.match(found.string, found.end())
        return f'"{token}"' if is_key else token
    if found["string"] and len(token) > 1 and token[-1] == token[0]:
        return '"' + re.sub(r'\\.|"', _character, token[1:-1], flags=re.DOTALL) + '"'
    return token


def _character(found: re.Match[str]) -> str:
    text = found[0]
    if text == '"':
        return '\\"'
    return text if text[1] in '"\\/bfnrtu' else text[1]
