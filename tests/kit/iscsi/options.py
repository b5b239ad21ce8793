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

    # -- CHAP -------------------------------------------------------------------------------------------------------
    chap: Optional[Chap] = None  #: what the initiator has to prove
    mutual: Optional[Chap] = None  #: what the target proves when it is asked
    discovery_chap: Optional[bool] = None  #: whether a discovery needs CHAP; None: as other sessions
    chap_hashes: Tuple[str, ...] = ("5", "6", "7", "8")
    #: what it does with a list without a known hash: "0201", "0200", "Reject" as the value, "close"
    chap_no_hash: str = "Reject"
    chap_whole_list: bool = False  #: refuses a list that is not one of its hashes alone, as LIO before Linux 3.15
    chap_no_offer: str = "0201"  #: to an initiator that does not offer CHAP: a status, "Reject" or "close"
    challenge_bytes: int = 16
    challenge_form: str = "hex"  #: "HEX", "base64"
    identifier_form: str = "decimal"  #: "hex"
    #: in place of its own proof: "wrong", "none", "no response", "no name", "name" (of another user); "challenge": it
    #: sends the initiator's own challenge back; "None": it chooses AuthMethod=None. "reflected": it hangs up, sends the
    #: challenge that it got to the next connection, and gives the answer as its proof
    cheats: str = ""

    # -- what it negotiates -----------------------------------------------------------------------------------------
    header_digest: Tuple[str, ...] = ("None", "CRC32C")  #: the first of these that the initiator offers
    data_digest: Tuple[str, ...] = ("None", "CRC32C")
    max_recv: Optional[int] = 262144  #: what it declares; None: says nothing, so 8192
    keys: Dict[str, Any] = {}  #: its wish for InitialR2T, ImmediateData, FirstBurstLength ...
    answers: Dict[str, str] = {}  #: a value that it answers whatever was offered; None: no answer
    brings_up: Tuple[Tuple[str, str], ...] = ()  #: keys that it brings up by itself
    text_part: int = 0  #: answers in text are cut after so many bytes, with C=1; 0: not at all
    discovery_part: int = 0  #: a discovery's answer is cut after so many bytes, with F=0 and a transfer tag
    hesitates: int = 0  #: so many times it does not go on to the next stage though it is asked to

    # -- numbers and flow -------------------------------------------------------------------------------------------
    stat_sn: int = 0x1000  #: of a connection's first PDU
    window: int = 32  #: commands that it takes at once
    answers_late: bool = False  #: commands that came together are carried out and answered in reverse order
    status_apart: bool = False  #: SCSI responses of their own for reads, not with the last data
    data_in_bytes: int = 1 << 24  #: it sends no more in one Data-In, whatever the initiator takes
    r2t_bytes: int = 1 << 24  #: it asks for no more at once, whatever MaxBurstLength is
    descriptor_sense: bool = False
    refuses: Tuple[int, ...] = ()  #: operation codes that it does not know
    #: (lun number or None, asc, ascq): unit attentions that wait for each new session
    attentions: Tuple[Tuple[Optional[int], int, int], ...] = ()
    max_sessions: int = 0  #: 0: any number
    too_many: str = "0302"  #: what a login then gets: a status, or "older": the older session is dropped
    opens_after: float = 0.0  #: a closed window is opened by a NOP-In when the initiator was quiet so long; 0: never
