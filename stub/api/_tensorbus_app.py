"""A package by another name: through it a stub imports the application without taking top-level names of the user.

A module with ``__path__`` is a package. The application root is the folder that holds ``stub/``: two folders up in the
source tree and in ``stub/api`` of an installed wheel, this folder where the wheel puts a second copy at the top level.
"""

import os

_here = os.path.dirname(os.path.abspath(__file__))
_root = _here if os.path.isdir(os.path.join(_here, "stub", "api")) else os.path.dirname(os.path.dirname(_here))
__path__ = [_root]
