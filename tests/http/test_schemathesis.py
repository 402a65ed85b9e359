"""schemathesis against our own OpenAPI document, all checks on."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("schemathesis")

MODELS = {"enum": ["tiny", "caller", "nobody"]}
IN_PATHS = {
    "model": MODELS,
    "name": MODELS,
    "version": {"enum": ["1"]},
    "file": {"enum": ["style.css", "main.js", "nothing"]},
}
CONFIG = """
[checks.positive_data_acceptance]
# Some rules are beyond JSON Schema (min_tokens up to max_tokens, ids within the vocabulary, tools
# that the template takes): what keeps to the schemas may still be wrong, and is a 400 then.
# Loading models is for admins (403).
expected-statuses = ["2xx", "400", "403", "404"]
"""


@pytest.mark.slow
def test_the_server_does_what_its_document_says(server: Any, tmp_path: Path) -> None:
    with urllib.request.urlopen(f"{server.url}/openapi.json") as answer:
        document = json.load(answer)
    del document["paths"]["/v2/repository/index"]  # a provisioner's, which this server has not
    del document["paths"]["/console/events"]  # it never ends
    del document["paths"]["/"]  # schemathesis follows it to the other page
    for operations in document["paths"].values():
        body = operations.get("post", {}).get("requestBody")
        if body is not None:
            schema = body["content"]["application/json"]["schema"]
            for one in schema.get("anyOf", [schema]):
                if "model" in one["properties"]:
                    one["properties"]["model"] = MODELS
        for operation in operations.values():
            for parameter in operation.get("parameters", []):
                if parameter["in"] == "path":
                    parameter["schema"] = IN_PATHS[parameter["name"]]
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "--config-file"),
        *("schemathesis.toml", "run", "openapi.json", "--url", server.url),
        *("--header", "Authorization: Bearer secret", "--checks", "all"),
        *("--max-examples", "100", "--phases", "examples,coverage,fuzzing", "--seed", "1"),
    ]
    finished = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=900
    )
    assert finished.returncode == 0, finished.stdout[-10_000:] + finished.stderr
    count = sum(map(len, document["paths"].values()))
    assert f"Tested: {count}" in finished.stdout
