# SPDX-License-Identifier: LGPL-2.1-only
"""What a venv gets is listed with the hashes of its files, and nothing else is installed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LISTS = sorted(ROOT.glob("*/requirements*.in"))


def pins(text):
    return {line.split(" ")[0].lower() for line in text.splitlines() if re.match("[A-Za-z]", line)}


@pytest.mark.parametrize("listed", LISTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_package_has_its_version_and_hashes(listed):
    text = listed.with_suffix(".txt").read_text(encoding="utf-8")
    packages = re.split(r"(?m)^(?=[A-Za-z])", text)[1:]

    for package in packages:
        assert re.match(r"[A-Za-z0-9._-]+==[^ ]+ .*\\\n    --hash=sha256:[0-9a-f]{64}", package), package[:80]
    assert pins(listed.read_text(encoding="utf-8")) <= pins(text), "run tools/requirements.sh"


def test_each_list_that_a_venv_is_made_of_is_among_them_and_pip_and_uv_compare_hashes():
    script = (ROOT / "tools" / "venv.sh").read_text(encoding="utf-8").replace("\\\n", " ")
    installing = [line for line in script.splitlines() if "pip install" in line]

    assert {str(path.relative_to(ROOT))[:-3] for path in LISTS} == set(re.findall(r"requirements=(\S+)\.txt", script))
    assert len(installing) == 2 and all("--require-hashes" in line for line in installing)
