# SPDX-License-Identifier: LGPL-2.1-only
"""What the progress of `attach` prints of a LUN whose SCSIid has control characters: a pool may list any text."""

import pytest

from kit.streams import Terminal
from relvmoiscsi.pool import progress

STRANGE = "3600\x1b[2J\u202e\nrelvmoiscsi: all is well"


class Bar:
    """As tqdm: it notes its texts."""

    texts = []

    def __init__(self, desc, **_more):
        self.texts.append(desc)

    def refresh(self):
        pass

    def close(self):
        pass


@pytest.mark.parametrize("tqdm", [None, Bar])
def test_a_scsi_id_moves_no_cursor_and_begins_no_line(monkeypatch, tqdm):
    monkeypatch.setattr(progress, "_tqdm", lambda: tqdm)
    stream = Terminal()
    with progress.shown(stream, {STRANGE: 2}, 1) as tell:
        for step, how in progress._WORDS:
            tell(STRANGE, step, how)
    said = [*stream.getvalue().splitlines(), *Bar.texts]
    assert len(said) >= 2 and all(map(str.isprintable, said))
    assert not [line for line in said if line.startswith("relvmoiscsi: all is well")]
