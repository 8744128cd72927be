"""Makes new keys (``tensorbus keys``) the secret $SECRET of $NAMESPACE; one that is there stays as it is."""

import base64
import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

keys = Path("/tmp/keys")
subprocess.run(["tensorbus", "keys", keys], check=True, stdout=subprocess.DEVNULL)
name, namespace = os.environ["SECRET"], os.environ["NAMESPACE"]
secret = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "tensorbus"}},
    "type": "Opaque",
    "data": {file.name: base64.b64encode(file.read_bytes()).decode() for file in keys.iterdir()},
}
request = urllib.request.Request(
    f"https://kubernetes.default.svc/api/v1/namespaces/{namespace}/secrets",
    json.dumps(secret).encode(),
    {"Authorization": "Bearer " + (ACCOUNT / "token").read_text(), "Content-Type": "application/json"},
)
trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
try:
    with urllib.request.urlopen(request, timeout=30, context=trusted):
        print(f"made the secret {name}")
except urllib.error.HTTPError as error:
    if error.code != 409:  # Conflict: there is one
        raise SystemExit(
            f"cannot make the secret {name}: {error.code} {error.read().decode(errors='replace')}"
        ) from None
    print(f"the secret {name} is there")
