# SPDX-License-Identifier: LGPL-2.1-only
"""Programs that judge what we write: real LVM2, blkid, wipefs; and the loop devices they look at.

    lvm = Lvm(directory)
    lvm.over(loop.path).seen()      what pvs, vgs, lvs and their segments say, as values
    expected(vg, loop.path)         what they should say, by the tests' own reader

LVM runs with a configuration of its own, sees exactly the devices it is given, and asks nothing of device-mapper.
"""

import fcntl
import json
import os
import subprocess
from typing import NamedTuple, Tuple

from kit.outcome import entropy_of as dice
from kit.outcome import names_of
from kit.reader import read_vg, renamed
from kit.sparse import SparseDisk
from relvmoiscsi import engine
from relvmoiscsi.device import Range
from relvmoiscsi.host.disk.block_device import BLKFLSBUF, open_device

MIB = 1 << 20

#: of a volume that tests let LVM make; raw, so that the engine reads it
NEW_LV = "LV-0a0b0c0d-0000-4000-8000-000000000001"
#: what no run may change in the end, as `pvck --dump headers` calls it
GEOMETRY = ("label_header.sector", "pv_header.device_size", "pv_header.disk_locn[0].offset",
            "pv_header.disk_locn[2].offset", "pv_header.disk_locn[2].size")  # fmt: skip
#: what LVM says of labels that its older releases wrote, and when it upgrades them
OLD_HEADER = ("is using an old PV header, modify the VG to update.", "WARNING: updating PV header on ")

#: what our configuration makes LVM say: activation = 0 on every command, backup = 0 on every change
_IN_ANY_CASE = (
    "WARNING: Activation disabled. No device-mapper interaction will be attempted.",
    "WARNING: This metadata update is NOT backed up.",
)

# Without use_aio = 0 each command waits 30 ms for the kernel to take its queue down. It reads and writes the same.
_CONFIG = """
config { checks = 1 }
devices {
    dir = "/dev"
    scan = [ "/dev" ]
    use_devicesfile = 0
    hints = "none"
    obtain_device_list_from_udev = 0
    external_device_info_source = "none"
    md_component_detection = 0
    multipath_component_detection = 0
}
global {
    activation = 0
    locking_type = 1
    locking_dir = "%(directory)s/lock"
    use_lvmpolld = 0
    use_lvmlockd = 0
    event_activation = 0
    use_aio = 0
}
backup {
    backup = 0
    archive = 0
    backup_dir = "%(directory)s/backup"
    archive_dir = "%(directory)s/archive"
}
"""

_VG_FIELDS = ("vg_name", "vg_uuid", "vg_seqno", "vg_attr", "vg_tags", "vg_extent_size", "vg_extent_count",
              "vg_free_count", "vg_missing_pv_count")  # fmt: skip
_PV_FIELDS = ("pv_name", "pv_uuid", "pv_attr", "pe_start", "pv_pe_count", "pv_ext_vsn", "pv_in_use", "pv_mda_count",
              "pv_mda_used_count")  # fmt: skip
_LV_FIELDS = ("lv_name", "lv_uuid", "lv_attr", "lv_tags", "lv_size")
_SEGMENT_FIELDS = ("lv_name", "segtype", "seg_start_pe", "seg_pe_ranges")
_VALUES = ("--units", "s", "--nosuffix", "--reportformat", "json")


class Answer(NamedTuple):
    """How a program ended and what it said; stderr without what LVM says in any case."""

    status: int
    stdout: str
    stderr: Tuple[str, ...]


class SeenVg(NamedTuple):
    """A volume group as LVM reports it; sizes in sectors, everything as text."""

    vg: Tuple[str, ...]  #: _VG_FIELDS
    pvs: Tuple[Tuple[str, ...], ...]
    lvs: Tuple[Tuple[str, ...], ...]  #: sorted
    segments: Tuple[Tuple[str, ...], ...]  #: sorted

    @property
    def name(self):
        return self.vg[0]

    @property
    def lv_names(self):
        return {lv[0] for lv in self.lvs}


def run(*argv):
    """Run a program that must not fail and must not complain; gives its stdout."""
    answer = attempt(*argv)
    assert (answer.status, answer.stderr) == (0, ()), (argv, answer)
    return answer.stdout


def attempt(*argv, **environment):
    env = {**os.environ, "LC_ALL": "C", **environment}
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    lines = (line.strip() for line in done.stderr.decode("utf-8", "replace").splitlines())
    said = tuple(line for line in lines if line and line not in _IN_ANY_CASE)
    return Answer(done.returncode, done.stdout.decode("utf-8", "replace"), said)


# -- LVM ------------------------------------------------------------------------------------------------------------


class Lvm:
    """Real LVM2 with a configuration and a lock directory of its own; `over` says which devices it sees."""

    def __init__(self, directory, devices=()):
        self.directory = str(directory)
        self.devices = devices
        os.makedirs(self.lock_directory, exist_ok=True)
        with open(os.path.join(self.directory, "lvm.conf"), "w") as config:
            config.write(_CONFIG % {"directory": self.directory})

    def over(self, *devices):
        return Lvm(self.directory, devices)

    @property
    def lock_directory(self):
        return os.path.join(self.directory, "lock")

    def attempt(self, command, *arguments):
        return attempt(*self._argv(command, arguments), **self._environment())

    def begin(self, command, *arguments):
        """A command under way, as a Popen; what it says goes to its stdout, its questions are asked on stdin."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        env = {**os.environ, "LC_ALL": "C", **self._environment()}
        return subprocess.Popen(self._argv(command, arguments), env=env, **pipes)

    def _argv(self, command, arguments):
        accepted = [f'"a|^{device}$|"' for device in self.devices]
        config = "devices/filter=[{}]".format(",".join(accepted + ['"r|.*|"']))
        return ("lvm", command, "--config", config) + arguments

    def _environment(self):
        return {"LVM_SYSTEM_DIR": self.directory, "LVM_SUPPRESS_FD_WARNINGS": "1"}

    def __call__(self, command, *arguments, warnings=()):
        """Run a command that must succeed and say nothing on stderr but what is in `warnings`; gives its stdout."""
        answer = self.attempt(command, *arguments)
        rest = [line for line in answer.stderr if not any(warning in line for warning in warnings)]
        assert answer.status == 0 and not rest, (command, arguments, answer)
        return answer.stdout

    def seen(self, warnings=()):
        """The volume groups by one command, `lvm fullreport`."""
        fields = (("vg", _VG_FIELDS), ("pv", _PV_FIELDS), ("lv", _LV_FIELDS), ("seg", _SEGMENT_FIELDS))
        options = [word for name, f in fields for word in ("--configreport", name, "-o", ",".join(f))]
        reports = json.loads(self("fullreport", *(list(_VALUES) + options), warnings=warnings))["report"]
        return tuple(sorted(_seen(*(report.get(name, []) for name, _ in fields)) for report in reports))

    def listed(self, warnings=()):
        """The same by `vgs`, `pvs`, `lvs` and `lvs --segments`."""
        vgs = self._rows("vgs", "vg", _VG_FIELDS, warnings)
        pvs = self._rows("pvs", "pv", _PV_FIELDS + ("vg_name",), warnings)
        lvs = self._rows("lvs", "lv", _LV_FIELDS + ("vg_name",), warnings)
        segments = self._rows("lvs", "seg", _SEGMENT_FIELDS + ("vg_name",), warnings, "--segments")
        found = []
        for vg in vgs:
            own = [[row for row in rows if row["vg_name"] == vg["vg_name"]] for rows in (pvs, lvs, segments)]
            found.append(_seen([vg], *own))
        return tuple(sorted(found))

    def _rows(self, command, kind, fields, warnings, *options):
        output = self(command, *(_VALUES + ("-o", ",".join(fields)) + options), warnings=warnings)
        return json.loads(output)["report"][0][kind]

    def headers(self, device, label_sector=1):
        """`pvck --dump headers`: field to value; what it found of texts is under "texts"."""
        found = {"texts": []}
        output = self("pvck", "--dump", "headers", "--labelsector", str(label_sector), device)
        for line in map(str.strip, output.splitlines()):
            assert "CHECK" not in line, line
            if line.startswith("metadata text"):
                found["texts"].append(line.split("# ")[1])
            elif " at " not in line and " " in line:
                key, value = line.split(" ", 1)
                found[key] = value
        return found

    def create(self, vg_name, lv_name, *options, extents=1, warnings=()):
        """`lvcreate`, without touching the extents."""
        size = ("-an", "-Zn", "-Wn", "-l", str(extents), "-n", lv_name)
        self("lvcreate", *(size + options + (vg_name,)), warnings=("not zeroed", *warnings))

    def remove(self, vg_name, lv_name):
        self("lvremove", "-y", f"{vg_name}/{lv_name}")


def _seen(vgs, pvs, lvs, segments):
    def rows(found, fields):
        return tuple(sorted(tuple(row[field] for field in fields) for row in found))

    (vg,) = rows(vgs, _VG_FIELDS)  # none: a PV without a VG, which is what no test wants to see
    return SeenVg(vg, rows(pvs, _PV_FIELDS), rows(lvs, _LV_FIELDS), rows(segments, _SEGMENT_FIELDS))


def expected(vg, device, ignored_mdas=0):
    """What LVM should say of a VG as the tests' own reader has read it, on `device`."""
    (pv,) = vg.pvs
    used, mdas = sum(lv.extents for lv in vg.lvs), len(vg.label.mdas)
    return SeenVg(
        (vg.name, vg.id, str(vg.seqno), "wz--n-", ",".join(vg.tags), str(vg.extent_size), str(pv.pe_count),
         str(pv.pe_count - used), "0"),
        ((device, pv.id, "a--", str(pv.pe_start), str(pv.pe_count), str(vg.label.ext_version), "used",
          str(mdas), str(mdas - ignored_mdas)),),
        tuple(sorted(_expected_lv(lv, vg.extent_size) for lv in vg.lvs)),
        tuple(sorted(_expected_segment(lv, segment, device) for lv in vg.lvs for segment in lv.segments)),
    )  # fmt: skip


def _expected_segment(lv, segment, device):
    extents = f"{device}:{segment.first_pe}-{segment.first_pe + segment.extent_count - 1}"
    return (lv.name, "linear", str(segment.start_extent), extents)


def _expected_lv(lv, sectors):
    # Without device-mapper LVM knows neither state nor open count: X.
    attributes = "-{}i-XX----".format("w" if "WRITE" in lv.status else "r")
    return (lv.name, lv.id, attributes, ",".join(lv.tags), str(lv.extents * sectors))


def vg_of(disk):
    """The only VG of a disk by the tests' own reader, without complaints."""
    vg = read_vg(disk)
    assert vg is not None and not vg.warnings, vg
    return vg


def with_new_ids(vg, ids):
    """A VG as it should be after a resignature with these ids: nothing else changes, and its generation is the next.

    A label of an old version becomes one of today's, which LVM does not write anew.
    """
    label = vg.label._replace(ext_version=2)
    return renamed(vg._replace(label=label), names_of(ids))._replace(seqno=vg.seqno + 1)


def whatever_label_version(seen):
    """What LVM sees, but for the version of the label."""
    at = _PV_FIELDS.index("pv_ext_vsn")
    return seen._replace(pvs=tuple(row[:at] + row[at + 1 :] for row in seen.pvs))


def lv_ranges(seen, lv_name):
    """Where an LV lies on the device, by what LVM says of its segments."""
    extent, start = (512 * int(sectors) for sectors in (seen.vg[5], seen.pvs[0][3]))
    found = []
    for _, _, _, extents in sorted((row for row in seen.segments if row[0] == lv_name), key=lambda row: int(row[2])):
        first, last = (int(number) for number in extents.rpartition(":")[2].split("-"))
        found.append(Range(start + first * extent, (last - first + 1) * extent))
    return found


def extract(disk, ranges, path):
    """Ranges of a disk as a sparse file."""
    with open(str(path), "wb") as file:
        at = 0
        for part in ranges:
            for start, data in disk.runs():
                first, last = max(part.offset, start), min(part.end, start + len(data))
                if first < last:
                    file.seek(at + first - part.offset)
                    file.write(data[first - start : last - start])
            at += part.length
        file.truncate(at)


def put_in(disk, ranges, offset, data):
    """Put bytes at an offset of what the ranges make up."""
    for part in ranges:
        piece = data[: max(0, part.length - offset)]
        if piece:
            disk.poke(part.offset + offset, piece)
        data, offset = data[len(piece) :], max(0, offset - part.length)
    assert not data, f"{len(data)} bytes do not fit"


# -- signatures -----------------------------------------------------------------------------------------------------


def signatures(device):
    """What blkid and wipefs find on a device, both probing it anew: type and PV id."""
    fields = dict(line.split("=", 1) for line in run("blkid", "--probe", "--output", "export", device).splitlines())
    wiped = json.loads(run("wipefs", "--no-act", "--json", device))["signatures"]
    return (fields["TYPE"], fields["UUID"]), [(item["type"], item["uuid"]) for item in wiped]


def assert_lvm_member(device, pv_id):
    """blkid and wipefs see an LVM physical volume with this id, and nothing else."""
    member = ("LVM2_member", pv_id)
    assert signatures(device) == (member, [member])


# -- loop devices ---------------------------------------------------------------------------------------------------


class Loop:
    """A disk of the tests, in a file behind a loop device."""

    def __init__(self, disk, file):
        self.file = str(file)
        self.block_size = disk.block_size
        disk.to_file(self.file)
        self.path = run("losetup", "--find", "--show", "--sector-size", str(self.block_size), self.file).strip()

    def detach(self):
        run("losetup", "--detach", self.path)
        os.unlink(self.file)

    def shrink(self, lost_bytes):
        """Make the device smaller."""
        if lost_bytes:
            os.truncate(self.file, os.path.getsize(self.file) - lost_bytes)
            run("losetup", "--set-capacity", self.path)

    def disk(self):
        """What is on it now, in memory."""
        return SparseDisk.from_file(self.file, self.block_size)

    def put(self, disk):
        """Make it hold this disk, by writing where it does not, and let nobody be shown what was there before."""
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            for part in self.disk().differences(disk):
                os.pwrite(descriptor, disk.peek(part.offset, part.length), part.offset)
            fcntl.ioctl(descriptor, BLKFLSBUF, 0)
        finally:
            os.close(descriptor)

    def open(self, writable=True):
        return open_device(self.path, writable)

    def inspect(self):
        with self.open(writable=False) as device:
            return engine.inspect(device)


def resignature(loop, seed="new ids"):
    """What the command does to a device; gives the engine's Result."""
    with loop.open() as device:
        prepared = engine.prepare(device, dice(seed))
        assert isinstance(prepared, engine.Prepared)
        return engine.resignature(device, prepared)


def recover(loop):
    """Finish what was cut."""
    with loop.open() as device:
        return engine.recover(device, engine.find_unfinished(device))


def undo(loop):
    with loop.open() as device:
        return engine.undo(device, dice("undo"))
