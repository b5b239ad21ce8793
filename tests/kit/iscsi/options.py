# SPDX-License-Identifier: LGPL-2.1-only
"""What the scripted target is like from the start: what a quirk may change of it, and what a test may ask for."""

from typing import Any, Dict, NamedTuple, Optional, Tuple


class Chap(NamedTuple):
    """A user and the secret, as bytes or text."""

    user: str
    secret: str


class Options(NamedTuple):
    """Everything is correct and ordinary by default."""

    iqn: str = "iqn.2026-01.test.hostile:array"
    #: host addresses that it listens at; each is a portal, and a portal group of its own, numbered from 1
    addresses: Tuple[str, ...] = ("127.0.0.1",)
    other_targets: Tuple[str, ...] = ()  #: further names that a discovery gives
    unlisted: bool = False  #: a discovery does not give `iqn`

    # -- logins -----------------------------------------------------------------------------------------------------
    chap: Optional[Chap] = None  #: what the initiator has to prove
    mutual: Optional[Chap] = None  #: what the target proves when it is asked
    discovery_chap: Optional[bool] = None  #: whether a discovery needs CHAP; None: as other sessions
    chap_list: int = 0  #: the status of its answer to several algorithms, as of LIO before Linux 3.15; 0: it chooses
    chap_hashes: Tuple[str, ...] = ("5", "6", "7", "8")
    chap_no_offer: str = "0201"  #: to an initiator that does not offer CHAP: a status, "Reject" or "close"
    cheats: str = ""  #: in place of its own proof: "wrong", "none", "name" (of another user)
    header_digest: Tuple[str, ...] = ("None", "CRC32C")  #: the first of these that the initiator offers
    data_digest: Tuple[str, ...] = ("None", "CRC32C")
    max_recv: Optional[int] = 262144  #: what it declares; None: says nothing, so 8192
    keys: Dict[str, Any] = {}  #: its wish for InitialR2T, ImmediateData, FirstBurstLength ...
    brings_up: Tuple[Tuple[str, str], ...] = ()  #: keys that it brings up by itself

    # -- numbers and flow -------------------------------------------------------------------------------------------
    stat_sn: int = 0x1000  #: of a connection's first PDU
    window: int = 32  #: commands that it takes at once
    answers_late: bool = False  #: commands that came together are carried out and answered in reverse order
    status_apart: bool = False  #: SCSI responses of their own for reads, not with the last data
    data_in_bytes: int = 1 << 24  #: it sends no more in one Data-In, whatever the initiator takes
    r2t_bytes: int = 1 << 24  #: it asks for no more at once, whatever MaxBurstLength is
    refuses: Tuple[int, ...] = ()  #: operation codes that it does not know
    #: (lun number or None, asc, ascq): unit attentions that wait for each new session
    attentions: Tuple[Tuple[Optional[int], int, int], ...] = ()
