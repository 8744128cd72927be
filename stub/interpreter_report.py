"""Run by path, with an environment's Python: prints what that is and which packages of a stub's it lacks.

Runs on every Python 3, so that one that is too old can say so.
"""

import json
import os
import sys
from typing import Any, Dict, List

_NEEDED = ["numpy", "msgpack"]
_OLDEST = (3, 9)


def _missing(names: List[str]) -> List[str]:
    from importlib.util import find_spec

    return [name for name in names if find_spec(name) is None]


def _report() -> Dict[str, Any]:
    report = {"version": list(sys.version_info[:3]), "new_enough": sys.version_info >= _OLDEST}
    if report["new_enough"]:
        import sysconfig

        abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
        report["abi"] = "{}-{}".format(abi, sysconfig.get_platform())
        report["missing"] = _missing(_NEEDED)
        report["has_pip"] = not _missing(["pip"])
    return report


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    print(json.dumps(_report()))


if __name__ == "__main__":
    main()
