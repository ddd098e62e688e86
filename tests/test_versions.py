"""What the project needs of others: bounds are stated, and what `make test` installs keeps them."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml
from conftest import ROOT

import inferometer

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOT_PINNED = {"torch"}  # the Makefile says which
LINES = sorted({*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)})
OWN = re.compile(r"inferometer\[([\w,]+)\]")  # an extra that is made of others
REQUIREMENTS = [line for line in LINES if not OWN.fullmatch(line)]
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


PINS = {
    canonical(line.split("==")[0]): numbers(line.split("==")[1].split(";")[0])
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line and not line.startswith("#")
}


@pytest.mark.parametrize("line", REQUIREMENTS)
def test_requirements_have_a_lower_bound_that_the_constraints_keep(line: str) -> None:
    match = REQUIREMENT.fullmatch(line)
    assert match is not None, f"{line}: tools/check_versions.py tries NAME>=VERSION"
    name = canonical(match[1])
    if name not in NOT_PINNED:
        assert PINS[name] >= numbers(match[2])


def test_extras_are_made_of_extras() -> None:
    named = {name for line in LINES for match in [OWN.fullmatch(line)] if match for name in match[1].split(",")}
    assert named <= set(EXTRAS)


def test_the_version_is_the_same_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\] - ([\d-]{10})$", changes, re.M)
    assert newest and newest[1] == cited["version"] == inferometer.__version__
    assert newest[2] == str(cited["date-released"])


def test_the_workflow_runs_make_test_with_the_oldest_and_the_newest_python() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make test"]
    stated = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert job["strategy"]["matrix"]["python"] == [stated[0], stated[-1]]
    assert PROJECT["requires-python"] == f">={stated[0]}"
