"""Texts with which both fronts refuse the parts of KServe v2 that are not served; Triton's own, clients know them."""

from __future__ import annotations

SHM_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
NO_REPOSITORY_NAME = "'repository_name' specification is not supported"
