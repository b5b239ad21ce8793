# SPDX-License-Identifier: LGPL-2.1-only
"""LUNs behind targets for a simulated pool, and the two SR drivers that it has for them, in this process.

    relvmoiscsi, relvmohba    our own engine on the LUN's bytes, with the words of the real driver
    lvmoiscsi, lvmohba        what the storage manager would do, as far as xapi sees it: with multipathing off, a host
                              that has a session finds no LUN that was mapped later, before it was asked for its list

    world = World()
    world.add("10.0.0.5", IQN, build_sr([...]).disk)
    with world.pool(hosts=("xs1", "xs2")) as pool:
        original = world.attach_original(pool, scsi_id, "Production")

What the real host does with sessions, locks and udev is not here: tests/vm has it.
"""

import json
import os
import runpy
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from uuid import uuid4

from kit.builder import build_sr, raw, vhd
from kit.driver_calls import EXECUTABLE
from kit.iscsi.lun import address_of
from kit.outcome import Unguarded, opened, run_on
from kit.pool import plugins, wire
from kit.pool.database import NULL
from kit.pool.datamodel import RELEASES
from kit.pool.errors import XenError
from kit.pool.runner import NotImplementedInBackend, Runner
from kit.pool.simulator import Pool
from kit.pool.standin import volumes_of
from kit.reader import device_ranges, lv_bytes, read_sr
from relvmoiscsi import __version__, engine, plugin
from relvmoiscsi.deadline import NO_DEADLINE
from relvmoiscsi.device import Chunk
from relvmoiscsi.errors import NotFound, RelvmoiscsiError, UsageError
from relvmoiscsi.host.xapi import other_hosts
from relvmoiscsi.iscsi import LunInfo, Portal
from relvmoiscsi.json_answer import answer_text
from relvmoiscsi.lun import users
from relvmoiscsi.lun.opened import LunSource
from relvmoiscsi.scsi_id_text import is_scsi_id
from relvmoiscsi.sr_driver import probe
from relvmoiscsi.sr_driver.codes import fault_of, unmistakable
from relvmoiscsi.sr_driver.hba import HBA
from relvmoiscsi.sr_driver.hba import config as hba_config
from relvmoiscsi.sr_driver.iscsi import ISCSI, unnamed
from relvmoiscsi.sr_driver.iscsi.iscsi_config import IscsiConfig
from relvmoiscsi.sr_driver.main import success
from relvmoiscsi.sr_driver.transport import MissingKey
from relvmoiscsi.wording import ONE

LVM_TYPE, OWN_TYPE = "lvmoiscsi", "relvmoiscsi"
LVM_HBA_TYPE, OWN_HBA_TYPE = "lvmohba", "relvmohba"
FABRIC = ""  #: the target of a LUN that the array maps to adapters

#: the arguments of each function of the host plugin
ARGUMENTS = runpy.run_path(str(EXECUTABLE.parent / "plugins" / "relvmoiscsi"))["ARGUMENTS"]
EXTENT = 4 << 20  #: bytes
BLOCK = 2 << 20  #: bytes of a VHD for which its table has an entry

#: the storage manager's numbers for a VG that LVM sees twice or does not read, and a LUN that is no disk of the host
DUPLICATE, UNAVAILABLE, SCSI_ID_MISSING = 119, 47, 107


class Asking(Unguarded):
    """Asks, as the driver does, whether the pool has the SR that the run takes off the LUN."""

    def __init__(self, asks, db):
        self._asks, self._db = asks, db

    def held(self, vg_names, replaced):
        users.verify_unused(self._asks._replace(replaced=replaced), self._db)
        return super().held(vg_names, replaced)

    def verify_finished(self, sr_uuid):
        users.verify_unused(self._asks._replace(replaced=[sr_uuid], is_finished=True), self._db)


class WorldSource(LunSource):
    """A LUN for the host plugin, which opens no device here. Nobody uses it."""

    def __init__(self, lun, host):
        super().__init__(lun.disk.name, host)
        self._lun = lun

    @contextmanager
    def opened_to_read(self, permission=None):
        yield opened(self._lun.disk, scsi_id=self._lun.scsi_id)

    def _find_scsi_id(self, permission):
        return self._lun.scsi_id

    def _opened_alone(self, scsi_id, permission):
        return self.opened_to_read(permission)

    def _locked(self, scsi_id, seconds):
        return ExitStack()


class Lun(NamedTuple):
    """A LUN, as the array gives it."""

    target: str
    iqn: str
    number: int
    scsi_id: str
    disk: object  #: a SparseDisk
    chap: tuple = ()  #: (user, password) that its target wants


class Session:
    """A host's, to an IQN: the LUNs (SCSIids) that it has as disks, and the SRs (UUIDs) that SM counts."""

    def __init__(self):
        self.luns, self.users = set(), set()


class World:
    """`create_s`: seconds that a resignature takes at the least; what the engine takes is part of them. `release`: the
    xapi that its pools play.
    """

    def __init__(self, create_s=0.0, release=RELEASES[0]):
        self.release = release
        self.luns = []
        self.gone = []  #: LUNs that `unmap` has taken away: no later LUN has their SCSIids and numbers
        self.create_s = create_s
        self.sessions = {}  #: {(host, IQN): Session}
        self.unmapped = set()  #: (host, SCSIid) of LUNs on the fabric that the array does not show to a host
        self.redo_logs = []  #: (SR UUID, VDI UUID) of metadata VDIs that xapi has begun to write to
        self.log = []  #: (command, SR UUID or "", SCSIid) of each driver call, in the order in which they begin
        self.fail = {}  #: {(command, SCSIid): RelvmoiscsiError} that a call ends with
        self._lock = threading.RLock()
        self._pool = None
        self._known = {}  #: (what, content of a disk): what was found
        self.recipes = {}  #: SCSIid: (volumes, seed) of which its disk was built, where VDIs may be made there
        #: UUIDs of VDIs that were deleted on LUNs without a recipe: their volumes stay on the disk, and SM has none
        self.deleted = set()

    # -- LUNs and pools -----------------------------------------------------------------------------------------------

    def add(self, target, iqn, disk, chap=(), scsi_id=None):
        """Another LUN; gives its SCSIid."""
        known = [*self.luns, *self.gone]
        number = sum(1 for lun in known if lun.iqn == iqn) + 1
        scsi_id = scsi_id or f"3600140500000000000000{len(known) + 1:011d}"
        disk.name = "/dev/" + scsi_id
        self.luns.append(Lun(target, iqn, number, scsi_id, disk, chap))
        return scsi_id

    def clone(self, scsi_id, **options):
        """An array snapshot of a LUN, behind the same target; gives its SCSIid."""
        lun = self.lun(scsi_id)
        return self.add(lun.target, lun.iqn, lun.disk.copy(), lun.chap, **options)

    def unmap(self, scsi_id):
        """The array shows the LUN to no host any more."""
        with self._lock:
            self.gone.append(self.lun(scsi_id))
            self.luns = [lun for lun in self.luns if lun.scsi_id != scsi_id]

    def lun(self, scsi_id):
        return next(lun for lun in self.luns if lun.scsi_id == scsi_id)

    def sr_uuid(self, scsi_id):
        """The SR on a LUN; None without one."""

        def read(disk):
            found = engine.inspect(disk).lun
            return found.sr_uuid if found else None

        return self._read("SR", self.lun(scsi_id), read)

    def _read(self, what, lun, read):
        """What `read` gives of a LUN's disk, which is asked again once the disk holds something else."""
        with self._lock:
            key = what, lun.disk.content()
            if key not in self._known:
                self._known[key] = read(lun.disk)
            return self._known[key]

    def state(self, scsi_id):
        return engine.inspect(self.lun(scsi_id).disk).state

    @contextmanager
    def pool(self, hosts=("xs1", "xs2"), **options):
        """A pool whose drivers see these LUNs."""
        with ExitStack() as stack:
            pool = stack.enter_context(
                Pool(None, None, hosts, drivers=_drivers(), runner=self, release=self.release, **options)
            )
            stack.enter_context(pool.near())
            pool.api.tasks_end_at_once = not self.create_s
            self._pool = pool
            vms = pool.api.vms
            vms.make_vdi, vms.drop_vdi = self._alone(self._make_vdi), self._alone(self._drop_vdi)
            vms.read_vdi, vms.write_vdi = self._alone(self._read_vdi), self._alone(self._write_vdi)
            yield pool

    def plugin(self, host, function, arguments):
        """The host plugin, which is in this process: `pool.api.host_plugins.functions`.

        It fails as the real one does, and where a function is not simulated.
        """
        if function not in ARGUMENTS:
            raise XenError("UNKNOWN_XENAPI_PLUGIN_FUNCTION", function)
        try:
            for argument in arguments:
                if argument not in ARGUMENTS[function]:
                    raise UsageError(f"The function {function} has no argument {argument!r}.")
            return self._plugin(host, function, arguments)
        except RelvmoiscsiError as error:
            raise XenError("RELVMOISCSI_FAILURE", function, str(error)) from error

    def _plugin(self, host, function, arguments):
        def see(path, told, _deadline):
            return json.loads(json.dumps(told(engine.inspect(self.lun(os.path.basename(path)).disk))))

        def source_at(path, host):
            return WorldSource(self.lun(os.path.basename(path)), host)

        if function == "add_lun":
            return self._add_lun(host, arguments)
        if function == "version":
            return __version__
        if function == "doctor":
            raise NotFound("`doctor` examines a dom0, and no simulated host has one.")
        if function == "status":  # a run here ends within its call
            return answer_text("plugin status", {"runs": []})
        if function == "lun":
            if not is_scsi_id(arguments.get("scsi_id", "")):
                raise UsageError("The argument scsi_id is no SCSIid.").advising("Give the SCSIid of a LUN.")
            return other_hosts.to_json(other_hosts.Use((), (), False))
        there = self._on_fabric(host) if arguments.get("hba") == "true" else self.luns  # of which some are behind iSCSI
        names = {lun.scsi_id: "/dev/" + lun.scsi_id for lun in there}
        beside = {
            "classify": {"see": see},
            "map": {"see": see, "pool": self._pool.db if self._pool else None},
            "resignature": {"source_at": source_at},
        }
        with self._lock if function == "resignature" else ExitStack():
            return plugin.FUNCTIONS[function](arguments, NO_DEADLINE, find=lambda *_: names, **beside[function])

    def _add_lun(self, host, arguments):
        """The host's session shows the LUN that has this number behind its target, if it is the one that is meant."""
        if {*arguments} != {"iqn", "scsi_id", "number"} or not arguments["number"].isdigit():
            raise UsageError("The arguments iqn, scsi_id and number name no LUN.")
        iqn, number = arguments["iqn"], int(arguments["number"])
        with self._lock:
            session = self.sessions.get((host, iqn))
            there = [lun.scsi_id for lun in self.luns if (lun.iqn, lun.number) == (iqn, number)]
            if session is None:
                return answer_text("plugin add_lun", {"problems": []})
            if there != [arguments["scsi_id"]]:
                return answer_text("plugin add_lun", {"problems": [f"The LUN {number} is another one."]})
            session.luns.update(there)
            return answer_text("plugin add_lun", {"problems": []})

    def attach_original(self, pool, scsi_id, name):
        """The SR on a LUN, introduced and plugged on each host that is up, as an administrator has it; gives its
        reference.
        """
        storage, lun = pool.storage, self.lun(scsi_id)
        type_ = LVM_TYPE if lun.target else LVM_HBA_TYPE
        sr = storage.sr_introduce("", self.sr_uuid(scsi_id), name, "", type_, "user", True)
        config = {"target": lun.target, "targetIQN": lun.iqn} if lun.target else {}
        config["SCSIid"] = scsi_id
        if lun.chap:
            config.update(chapuser=lun.chap[0], chappassword=lun.chap[1])
        for host in pool.hosts:
            pbd = storage.pbd_create("", {"host": host, "SR": sr, "device_config": config})
            if host not in storage.offline:
                self.ask_for_list(host, lun.iqn)  # by the administrator's dialog
                storage.pbd_plug("", pbd)
        storage.sr_scan("", sr)
        return sr

    def ask_for_list(self, host, iqn):
        """What the stock list does on a host: it scans a session that is there."""
        with self._lock:
            if (host, iqn) in self.sessions:
                self._scan_session((host, iqn))

    def _on_fabric(self, host):
        return [lun for lun in self.luns if not lun.target and (host, lun.scsi_id) not in self.unmapped]

    # -- VDIs ---------------------------------------------------------------------------------------------------------

    def _alone(self, function):
        """One at a time reads or changes volumes: a task of a client that was killed goes on beside the next run's."""

        def alone(*words):
            with self._lock:
                return function(*words)

        return alone

    def _make_vdi(self, sr, record):
        """A volume more, VHD or raw: the disk is built anew with it, as its ids follow from their keys."""
        self._scsi_id_of(record["SR"])  # a copy reads the VDI there
        scsi_id = self._scsi_id_of(sr)
        volumes, seed = self.recipes[scsi_id]
        key = f"made {sum(volume.key.startswith('made') for volume in volumes) + 1} {record['name_description']}"
        words = {"label": record["name_label"], "description": record["name_description"]}
        size = int(record["virtual_size"])
        if record.get("sm_config", {}).get("vdi_type") == "vhd":
            volume, more = vhd(key, blocks=0, bat_entries=-(-size // BLOCK), **words), {}
        else:
            extents = -(-size // EXTENT)
            volume = raw(key, extents=extents, **words)
            more = {"virtual_size": extents * EXTENT, "sm_config": {"vdi_type": "aio"}}
        truth = self._rebuild(scsi_id, [*volumes, volume], seed)
        return truth.volume(key).uuid, more

    def _drop_vdi(self, record):
        scsi_id = self._scsi_id_of(record["SR"])
        if scsi_id not in self.recipes:
            self.deleted.add(record["uuid"])
            return
        volumes, seed = self.recipes[scsi_id]
        truth = build_sr(volumes, seed=seed).truth
        gone = [each.key for each in volumes if truth.volume(each.key).uuid == record["uuid"]]
        stay = []
        for volume in volumes:
            of_mgt = volume.record
            if of_mgt is not None and of_mgt.snapshot_of in gone:  # sm leaves the UUID there
                of_mgt = of_mgt._replace(snapshot_of=record["uuid"])
            stay += [volume._replace(record=of_mgt)] if volume.key not in gone else []
        self._rebuild(scsi_id, stay, seed)

    def _rebuild(self, scsi_id, volumes, seed):
        """What was written to volumes that were made stays."""
        old, built = self.lun(scsi_id).disk, build_sr(volumes, seed=seed)
        made = [built.truth.volume(volume.key).name for volume in volumes if volume.key.startswith("made")]
        (vg, there), (new_vg, new) = self._lvs(old), self._lvs(built.disk)
        for name in filter(there.get, made):
            content = lv_bytes(old, vg, there[name], 0, there[name].extents * vg.extent_bytes)
            self._fill(built.disk, new_vg, new[name], content)
        built.disk.name = old.name
        self.luns = [each._replace(disk=built.disk) if each.scsi_id == scsi_id else each for each in self.luns]
        self.recipes[scsi_id] = list(volumes), seed
        return built.truth

    def _scsi_id_of(self, sr):
        """The LUN of an SR. Raises XenError, as sm of a VDI there, where LVM reads the SR on no LUN."""
        uuid = self._pool.db.get("SR", sr, "uuid")
        for lun in self.luns:
            if self.sr_uuid(lun.scsi_id) == uuid:
                return lun.scsi_id
        raise XenError("SR_BACKEND_FAILURE_46", "", "The VDI is not available [opterr=LVM reads no VG for it]", "")

    @staticmethod
    def _lvs(disk):
        """The VG on a disk, and its LVs by name."""
        vg = read_sr(disk).vg
        return vg, {lv.name: lv for lv in vg.lvs}

    def _put(self, disk, name, content):
        vg, lvs = self._lvs(disk)
        self._fill(disk, vg, lvs[name], content)

    @staticmethod
    def _fill(disk, vg, lv, content):
        done = 0
        for place in device_ranges(vg, lv, 0, len(content)):
            disk.write([Chunk(place.offset, content[done : done + place.length])])
            done += place.length
        disk.flush()

    def _read_vdi(self, vdi):
        record = self._pool.db.record("VDI", vdi)
        disk = self.lun(self._scsi_id_of(record["SR"])).disk
        vg, lvs = self._lvs(disk)
        lv = lvs["LV-" + record["uuid"]]
        return lv_bytes(disk, vg, lv, 0, lv.extents * vg.extent_bytes)

    def _write_vdi(self, vdi, content):
        record = self._pool.db.record("VDI", vdi)
        self._put(self.lun(self._scsi_id_of(record["SR"])).disk, "LV-" + record["uuid"], content)

    # -- driver calls -------------------------------------------------------------------------------------------------

    def call(self, path, members):
        """As kit.pool.runner.Runner."""
        type_, command, config = os.path.basename(path), members["command"], members["device_config"]
        stock = LVM_TYPE if type_ == LVM_HBA_TYPE else type_  # both of sm's are one here
        function = getattr(self, f"_{stock}_{command}", None)
        if function is None:
            raise NotImplementedInBackend()
        with self._lock:
            self.log.append((command, members.get("sr_uuid") or "", config.get("SCSIid", "")))
        try:
            failure = self.fail.get((command, config.get("SCSIid")))
            if failure:
                raise failure
            result = function({**members, "type": type_}, config)
        except _Answer as answer:
            raise Runner._error(wire.Fault(answer.code, answer.text), members, "") from answer
        except RelvmoiscsiError as error:
            fault = fault_of(error)
            stderr = unmistakable(getattr(error, "xml", ""))
            raise Runner._error(wire.Fault(fault.faultCode, fault.faultString), members, stderr) from error
        return wire.parse(wire.from_python(result) if result is not None else "<value><nil/></value>")

    def kill_all(self):
        """Nothing runs outside this process."""

    def _behind(self, config, type_, host=None):
        """The LUN that a device-config names. Raises the errors of the driver for what is missing, with its lists."""
        if type_ in (LVM_HBA_TYPE, OWN_HBA_TYPE):
            return self._mapped(config, host or self._pool.master)
        parsed = IscsiConfig(config)
        there = [lun for lun in self.luns if lun.target == parsed.target]
        if not there:
            raise NotFound(f"No iSCSI target answers at {parsed.target}.", "ISCSITarget")
        mine = [lun for lun in there if lun.iqn == parsed.target_iqn]
        if not mine:
            targets = [(Portal(lun.target, 3260), lun.iqn) for lun in there]
            targets = list(dict.fromkeys(targets))
            text = "The target's IQN (device-config:targetIQN) is missing or incorrect."
            listed = unnamed.target_list(targets, (parsed.target, 3260))
            raise MissingKey(text, "ConfigTargetIQNMissing", listed)
        if mine[0].chap != self._credentials(parsed.chap):  # LIO refuses a login with CHAP that it does not want, too
            raise NotFound("The target does not accept the login.", "ISCSILogin")
        for lun in mine:
            if lun.scsi_id == parsed.scsi_id:
                return lun
        if parsed.scsi_id:
            raise NotFound(f"No LUN with the SCSIid {parsed.scsi_id} appeared.", "ISCSIDevice")
        raise MissingKey("The SCSIid (device-config:SCSIid) is missing.", "ConfigSCSIid", _lun_list(mine))

    def _mapped(self, config, host):
        wanted = hba_config.HbaConfig(config).scsi_id
        for lun in self._on_fabric(host):
            if lun.scsi_id == wanted:
                return lun
        raise NotFound(f"No adapter sees a LUN with the SCSIid {wanted}.", "ISCSIDevice")

    def _credentials(self, chap):
        """(user, password) of a login, as the drivers find them."""
        if chap is None:
            return ()
        if not chap.is_secret_uuid:
            return chap.user, chap.password
        db = self._pool.db
        return chap.user, db.get("secret", db.by_uuid("secret", chap.password), "value")

    # -- relvmoiscsi --------------------------------------------------------------------------------------------------

    def _relvmoiscsi_sr_probe(self, members, config):
        lun = self._behind(config, members["type"])
        return self._probed(lun)

    def _probed(self, lun):
        return self._read(f"probe of {lun.scsi_id}", lun, lambda disk: probe.document(disk, lun.scsi_id))

    def _volumes(self, lun):
        if self.sr_uuid(lun.scsi_id) is None:
            raise _Answer(UNAVAILABLE, "The SR is not available [opterr=LVM reads no SR on the LUN]")
        return self._read("all", lun, read_sr)

    def _relvmoiscsi_sr_create(self, members, config):
        db, is_hba = self._pool.db, members["type"] == OWN_HBA_TYPE
        lun, asked = self._behind(config, members["type"]), (HBA if is_hba else ISCSI).parse_config(config)
        if not asked.is_meant:
            raise UsageError("The LUN is resignatured with device-config:resign=true alone.", "InvalidArg")
        one = engine.OneVdiRequest(asked.vdi) if asked.vdis == ONE else None
        if asked.vdi is not None and one is None:
            raise UsageError("device-config:vdi names the one VDI that stays.", "InvalidArg")
        asks = users.Question(lun.scsi_id, own_sr=members["sr_ref"], clone_of=asked.clone_of, look=lambda path: None)
        users.verify_unused(asks, db)
        end = time.monotonic() + self.create_s
        with self._lock:
            request = engine.ResignatureRequest(scsi_id=lun.scsi_id, one=one, clear_databases=asked.clear_databases)
            run_on(lun.disk, os.urandom, request, guard=Asking(asks, db))
        if self.create_s:  # on a host ten drivers are ten processes, and other calls do not wait for them
            self._probed(lun)
            self._volumes(lun)
            time.sleep(max(0.0, end - time.monotonic()))
        if not is_hba:  # the driver's last act
            arguments = {"iqn": lun.iqn, "scsi_id": lun.scsi_id, "number": str(lun.number)}
            self._add_lun(members["host_ref"], arguments)
        done = success(HBA if is_hba else ISCSI)
        raise _Answer(done.faultCode, done.faultString)

    _relvmohba_sr_probe, _relvmohba_sr_create = _relvmoiscsi_sr_probe, _relvmoiscsi_sr_create

    # -- lvmoiscsi ----------------------------------------------------------------------------------------------------

    def _lvmoiscsi_sr_attach(self, members, config):
        host = members["host_ref"]
        lun = self._behind(config, members["type"], host)
        self._log_in(members, lun)
        try:
            self._verify_vg(members, lun)
        except _Answer:
            self._log_out(members, lun)
            raise
        if host == self._pool.master:  # as LVHDSR.attach notes it
            db, sr = self._pool.db, members["sr_ref"]
            db.set("SR", sr, "sm_config", {**db.get("SR", sr, "sm_config"), "devserial": "scsi-" + lun.scsi_id})
        self._look_for_metadata(members, lun)

    def _log_in(self, members, lun):
        """A new session has every LUN of the target. One that is there has those of its login and of its last scan,
        and SM, which means to scan it, looks for it in a place that does not exist; but with multipathing.

        Source: SM BaseISCSI.py attach, iscsilib.py refresh_luns, mpath_dmp.py refresh.
        """
        if not lun.target:
            return
        key = members["host_ref"], lun.iqn
        with self._lock:
            if key not in self.sessions or self._pool.db.get("host", key[0], "multipathing"):
                self._scan_session(key)
            session = self.sessions[key]
            session.users.add(members["sr_uuid"])
            is_there = lun.scsi_id in session.luns
        if not is_there:
            self._log_out(members, lun)
            raise _Answer(SCSI_ID_MISSING, "The SCSIid parameter is missing or incorrect")

    def _scan_session(self, key):
        session = self.sessions.setdefault(key, Session())
        session.luns = {each.scsi_id for each in self.luns if each.target and each.iqn == key[1]}

    def _log_out(self, members, lun):
        """By the last SR that SM counts. Source: SM BaseISCSI.py detach."""
        key = members["host_ref"], lun.iqn
        with self._lock:
            session = self.sessions.get(key, Session())
            session.users.discard(members["sr_uuid"])
            if not session.users:
                self.sessions.pop(key, None)

    def _lvmoiscsi_sr_probe(self, members, config):
        """Without a SCSIid the list, which is a failure, after a scan of a session that is there. With a SCSIid the SR
        on the LUN; the driver attaches the LUN for that as for a plug.

        Source: SM LVHDoISCSISR.py _LUNprint and probe.
        """
        host = members["host_ref"]
        if not config.get("SCSIid"):
            self.ask_for_list(host, config.get("targetIQN", ""))
        lun = self._behind(config, members["type"], host)
        probing = {**members, "sr_uuid": str(uuid4())}
        self._log_in(probing, lun)
        try:
            with self._lock:
                found, size = self.sr_uuid(lun.scsi_id), lun.disk.size_bytes
        finally:
            self._log_out(probing, lun)
        sr = f"<SR><UUID>\n{found}\n</UUID><Devlist>{lun.scsi_id}</Devlist><size>{size}</size></SR>" if found else ""
        return f'<?xml version="1.0" ?>\n<SRlist>{sr}</SRlist>\n'

    def _verify_vg(self, members, lun):
        """Does LVM see the SR's VG on this LUN, and on no other? Raises _Answer."""
        host = members["host_ref"]
        with self._lock:
            there = set().union(*(one.luns for (each, _), one in self.sessions.items() if each == host))
            seen = self._on_fabric(host) + [each for each in self.luns if each.target and each.scsi_id in there]
            found = {each.scsi_id: self.sr_uuid(each.scsi_id) for each in seen}
        if found.get(lun.scsi_id) != members["sr_uuid"]:
            raise _Answer(UNAVAILABLE, f"The SR is not available [opterr=the LUN has {found.get(lun.scsi_id)}]")
        twins = [scsi_id for scsi_id, uuid in found.items() if uuid == members["sr_uuid"] and scsi_id != lun.scsi_id]
        if twins:
            raise _Answer(DUPLICATE, f"LVM sees the VG twice [opterr={', '.join(twins)}]")

    def _look_for_metadata(self, members, lun):
        """xapi, on the master and for a shared SR, writes its redo log into a metadata VDI of this pool."""
        if members["host_ref"] != self._pool.master:
            return
        for record in self._volumes(lun).mgt.records:
            if dict(record.fields).get("metadata_of_pool") == self._pool.pool and not record.deleted:
                self.redo_logs.append((members["sr_uuid"], record.uuid))

    def _lvmoiscsi_sr_detach(self, members, config):
        self._log_out(members, self._behind(config, members["type"], members["host_ref"]))

    def _lvmoiscsi_sr_scan(self, members, config):
        lun, db, sr = self._behind(config, members["type"], members["host_ref"]), self._pool.db, members["sr_ref"]
        found = {uuid: each for uuid, each in volumes_of(self._volumes(lun)).items() if uuid not in self.deleted}
        with db.lock:
            rows = {record["uuid"]: ref for ref, record in db.records("VDI", SR=sr).items()}
            for uuid in set(rows) - set(found):
                db.destroy("VDI", rows.pop(uuid))
            for uuid in sorted(set(found) - set(rows)):
                rows[uuid] = _new_row(db, sr, uuid, found[uuid])
            for uuid, volume in found.items():
                db.set("VDI", rows[uuid], "snapshot_of", rows.get(volume["snapshot_of"], NULL))
            db.set("SR", sr, "physical_size", lun.disk.size_bytes)

    def _lvmoiscsi_vdi_update(self, members, config):
        """The real one writes the name into the volume MGT. `log` has the call; no test here reads it from the LUN."""
        self._behind(config, members["type"], members["host_ref"])


class _Answer(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)
        self.code, self.text = code, text


def _new_row(db, sr, uuid, volume):
    names = ("name_label", "name_description", "type", "read_only", "managed", "is_a_snapshot")
    fields = {name: volume[name] for name in names}
    return db.create(
        "VDI", uuid, SR=sr, location=uuid, virtual_size=volume["size"], physical_utilisation=volume["allocated"],
        sm_config={"vdi_type": volume["vdi_type"]}, **fields
    )  # fmt: skip


def _lun_list(luns):
    return unnamed.lun_list(
        [LunInfo(address_of(lun.number), lun.scsi_id, "TEST", size_bytes=lun.disk.size_bytes) for lun in luns]
    )


def _drivers():
    return {
        name: plugins.Driver(
            name, "/world/" + name, name, "", "", "", "1.0", "1.0", ("SR_PROBE",), {"SR_PROBE": 1}, {}, ()
        )
        for name in (LVM_TYPE, OWN_TYPE, LVM_HBA_TYPE, OWN_HBA_TYPE)
    }  # fmt: skip
