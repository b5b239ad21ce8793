# SPDX-License-Identifier: LGPL-2.1-only
"""A pool of three hosts with the originals "Production" and "Testing"."""

import time
from contextlib import contextmanager
from functools import lru_cache

import pytest

from kit.examples import SEED, WHOLE, of_each_kind
from kit.lun_world import World
from kit.pool.api import GoneAway
from kit.pool.datamodel import RELEASES
from kit.pool_fakes import until
from kit.pool_lab import Image, lab_of_three, only_reads
from relvmoiscsi.errors import RelvmoiscsiError
from relvmoiscsi.pool import answer_forms
from relvmoiscsi.pool.calls import Calls


@lru_cache(maxsize=None)
def _formed(kind):
    """Records of this class, of which code reads fields with a form by name, and no others."""
    forms = frozenset(answer_forms.FIELDS.get(kind, ()))

    class Formed(dict):
        def __getitem__(self, name):
            assert name in forms, f"{kind}.{name} is read, and has no form in answer_forms"
            return dict.__getitem__(self, name)

    return Formed


@pytest.fixture(autouse=True, scope="session")
def each_field_that_is_read_has_a_form():
    """Else a broken answer of a pool ends a command with a bug: no test would tell, as this pool has each field."""
    call = Calls.call

    def formed(calls, method, *arguments):
        found = call(calls, method, *arguments)
        kind, _, what = method.rpartition(".")
        if what.startswith("get_all_records"):
            return {ref: _formed(kind)(record) for ref, record in found.items()}
        return _formed(kind)(found) if what == "get_record" else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Calls, "call", formed)
        yield


@pytest.fixture(scope="session")
def image_of_originals():
    with lab_of_three(World()) as lab:
        lab.original("Production")
        lab.original("Testing")
        return Image(lab)


@pytest.fixture(params=[pytest.param(release, marks=pytest.mark.states("release", few=1)) for release in RELEASES])
def release(request):
    """The xapi that the pool plays: each test runs on all; a sample takes one for each test."""
    return request.param


@pytest.fixture
def world(release):
    return World(release=release)


@pytest.fixture
def lab(world, image_of_originals):
    with lab_of_three(world, image_of_originals) as made:
        yield made


@pytest.fixture
def deaths(lab):
    """`for way in deaths(work, *ways)`: in the pool as it is now, the client of `work` dies at a call of each kind that
    changes something; `way` is what the test is to do then. A sample takes a way and a moment for each death: before
    the call, or when the call is done and nobody hears of its answer. `each_moment` takes all, of work that is short.
    """

    def of(work, *ways, each_moment=WHOLE):
        image, api = Image(lab), lab.pool.api
        kinds = []
        with wrapped(api, lambda function, *words: (kinds.append(words[0]), function(*words))[1]):
            work()
        kinds[-1] = "the last call"  # each sample has a death after which nothing is left to be done
        moments = [(way, is_lost) for way in ways or (None,) for is_lost in (False, True)]
        for turn, number in enumerate(of_each_kind(kinds, 40, "deaths"), SEED):
            for way, is_answer_lost in moments if each_moment else [moments[turn % len(moments)]]:
                until(lambda: not under_way(lab))
                image.put(lab)
                api.clock = time.time
                with wrapped(api, Death(number, is_answer_lost)):
                    try:
                        work()
                    except RelvmoiscsiError:
                        pass
                yield way

    return of


class Death:
    """Of a client, at its call of this number that changes something: every later call of the client fails."""

    def __init__(self, number, is_answer_lost):
        self.number, self.is_answer_lost, self.calls = number, is_answer_lost, 0

    def __call__(self, function, *words):
        self.calls += 1
        if self.calls < self.number:
            return function(*words)
        if self.calls == self.number and self.is_answer_lost:
            function(*words)
        raise GoneAway()


@contextmanager
def wrapped(api, around):
    """A block in which `around` is called with the function of each call that changes something, and its arguments.
    Calls that only read fail once one of the others has failed.
    """
    gone = []

    def wrap(function):
        def call(*words):
            if only_reads(str(words[0])):
                if gone:
                    raise GoneAway()
                return function(*words)
            try:
                return around(function, *words)
            except GoneAway:
                gone.append(words[0])
                raise

        return call

    api.call, api.transferred = wrap(api.call), wrap(api.transferred)
    try:
        yield
    finally:
        del api.call, api.transferred


def under_way(lab):
    """Tasks that the pool ends by itself."""
    tasks = lab.pool.db.records("task", status="pending").values()
    return [task for task in tasks if task["name_label"].startswith("Async.")]
