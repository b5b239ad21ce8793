# SPDX-License-Identifier: LGPL-2.1-only
"""docs/security.rst has a row for each key of other_config that the program reads."""

import re

from kit.rpm_tools import TOP

PAGE = TOP / "docs/security.rst"
#: keys that a copy of a VM takes along, and that no decision rests on
ONLY_COPIED = {"pci", "auto_poweron"}
#: what stands for a key: `other_config.get(KEY)`, `["other_config"][KEY]`, `KEY in vm["other_config"]`
READ = re.compile(
    r'other_config"?(?:, \{\})?[\])]*(?:\.get\(|\[)("[\w:.-]+"|[A-Z_]+)'
    r'|("[\w:.-]+"|\b[A-Z_]+) (?:not )?in [^\n]*other_config'
)


def read_keys(source):
    """The keys that a module reads from other_config, and each text in it with the form of a key of ours."""
    found = {first or second for first, second in READ.findall(source)}
    names = dict(re.findall(r'^(\w+) = ("[^"]+")$', source, re.MULTILINE))
    keys = {names.get(key, key) for key in found} | set(re.findall('"relvmoiscsi:[a-z-]+:?"', source))
    return {key.strip('"').rstrip(":") for key in keys if key.startswith('"')} - ONLY_COPIED


def rows():
    """The keys that the lists of keys explain, without what follows a colon at the end."""
    lists = PAGE.read_text(encoding="utf-8").split("\nKeys that others write\n")[1].split("\nRecords of VMs\n")[0]
    terms = re.findall(r"^(``.*)\n   \S", lists, flags=re.MULTILINE)
    return {key.rstrip(":…") for term in terms for key in re.findall("``([^`]+)``", term)}


def test_each_key_that_is_read_has_a_row():
    modules = [*TOP.glob("relvmoiscsi/**/*.py"), *TOP.glob("ansible/plugins/**/*.py")]
    keys = set().union(*(read_keys(path.read_text(encoding="utf-8")) for path in modules))
    assert {"relvmoiscsi:run", "relvmoiscsi:lock", "iscsi_iqn", "multipathing"} <= keys
    assert sorted(key for key in keys if not any(key.startswith(row) for row in rows())) == []
