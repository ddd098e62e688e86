"""Files of `search -o DIR` against the published schemas of what reads them; unknown fields are errors.

    python tools/check_manifests.py SCHEMAS DIR

SCHEMAS is a folder with any of these, by their own names (docs/deploy.md says which versions were used):
  *_openapi.json      kubernetes/kubernetes api/openapi-spec/v3
  *.yaml              CustomResourceDefinitions: LeaderWorkerSet, DynamoGraphDeployment, InferencePool …
  compose-spec.json   compose-spec/compose-spec schema
  values.schema.json  llm-d-incubation/llm-d-modelservice charts/llm-d-modelservice
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

ANY = "x-kubernetes-preserve-unknown-fields"


def strict(schema: Any) -> Any:
    """A schema whose objects have no fields beyond those it names."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    named = isinstance(schema.get("properties"), dict) and schema.get("type", "object") == "object"
    closed = (
        {"additionalProperties": False} if named and "additionalProperties" not in schema and ANY not in schema else {}
    )
    return {key: strict(value) for key, value in schema.items()} | closed


def schemas(folder: Path) -> dict[tuple[str, str], Any]:
    """Validators by (apiVersion, kind); Compose and llm-d's values by their names."""
    known: dict[tuple[str, str], Any] = {}
    for path in sorted(folder.rglob("*_openapi.json")):
        parts = strict(json.loads(path.read_text())["components"])
        for name, schema in parts["schemas"].items():
            for kind in schema.get("x-kubernetes-group-version-kind", []):
                api = "/".join(filter(None, (kind["group"], kind["version"])))
                known[api, kind["kind"]] = {"$ref": f"#/components/schemas/{name}", "components": parts}
    for path in sorted(folder.rglob("*.yaml")):
        for crd in yaml.safe_load_all(path.read_text()):
            spec = crd["spec"]
            for version in spec["versions"]:
                schema = strict(version["schema"]["openAPIV3Schema"])
                known[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    for name, kind in (("compose-spec.json", "compose"), ("values.schema.json", "values")):
        for path in folder.rglob(name):
            known["", kind] = json.loads(path.read_text())
    return known


def kind_of(path: Path, document: dict[str, Any]) -> tuple[str, str]:
    """What schema a document is of."""
    if path.name.startswith("compose"):
        return "", "compose"
    if path.name == "modelservice.values.yaml":
        return "", "values"
    return document.get("apiVersion", ""), document.get("kind", path.name)


def main(schema_folder: str, folder: str) -> int:
    """Prints what is wrong, and how many documents of each kind were checked; 1 if anything is wrong."""
    known = schemas(Path(schema_folder))
    validators: dict[tuple[str, str], Any] = {}
    right: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    wrong = 0
    for path in sorted(Path(folder).rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            key = kind_of(path, document)
            if key not in known:
                unknown[" ".join(key).strip()] += 1
                continue
            if key not in validators:
                validators[key] = jsonschema_rs.validator_for(known[key])
            errors = [*validators[key].iter_errors(document)]
            for error in errors:
                print(f"{path}: {'/'.join(map(str, error.instance_path))}: {error.message[:300]}")
            wrong += bool(errors)
            right[" ".join(key).strip()] += not errors
    for title, counts in (("valid", right), ("without a schema", unknown)):
        for kind, count in sorted(counts.items()):
            print(f"{title}: {count} {kind}")
    return 1 if wrong or not right else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
