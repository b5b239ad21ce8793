# SPDX-License-Identifier: LGPL-2.1-only
# What each target does is in tools/; CI=true makes whatever could not run a failure.

.PHONY: help demo playground test check unit unit36 judges cinder collection sanity clients vm e2e exhaustive bench acceptance acceptance-clean docs rpm pack release clean
.NOTPARALLEL:

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 18

demo:  ## a guided tour: resignature a clone, cut the power, recover
	@bash tools/demo.sh

playground:  ## a shell with a simulated pool for `relvmoiscsi pool`; TOUR=1: a night and the day after, by themselves
	@tools/venv.sh current
	@.venv/current/bin/python tools/playground.py $(if $(TOUR),--tour,|| true)

test:  ## all tests: unit on a current Python and on 3.6, the judges, end to end in a VM
	@bash tools/test.sh unit unit36 judges cinder collection clients vm

check:  ## lint, format, types, 3.6 syntax, shell scripts, documents
	@bash tools/check.sh

unit:  ## the unit tests on a current Python: minutes, no root
	@bash tools/test.sh unit

unit36:  ## the unit tests on Python 3.6
	@bash tools/test.sh unit36

judges:  ## as root: real LVM2, qemu-img and libvhdi judge our results
	@bash tools/test.sh judges

cinder:  ## the layer for OpenStack's Cinder, in Cinder's own manager
	@bash tools/test.sh cinder

collection:  ## the Ansible collection, in build/collection; playbooks run with it against the simulated pool
	@bash tools/collection.sh build
	@bash tools/test.sh collection

sanity:  ## the collection before Ansible's own judges, ansible-test sanity and units; takes what they need from PyPI
	@bash tools/collection.sh sanity

clients:  ## clients that others wrote, from npm and Maven Central, on the simulated pool
	@bash tools/test.sh clients

vm:  ## as root: kernels of their own with iSCSI target and initiator, Fibre Channel, multipath, udev and LVM2
	@bash tools/test.sh vm

e2e: vm  ## another name of vm

exhaustive:  ## for a night: every cut, kill and state, thousands of random chains; before a release
	@RELVMOISCSI_WHOLE=1 bash tools/test.sh unit unit36 judges cinder collection clients vm
	@.venv/current/bin/python tools/long_run.py qcow2 $(or $(FIRST),0) $(or $(COUNT),3000)
	@.venv/current/bin/python tools/long_run.py vhd $(or $(FIRST),0) $(or $(COUNT),3000)

bench:  ## what a run costs: eight numbers beside their goals; as root: on loop devices and in a VM. PAGE=1: docs/costs.rst
	@bash tools/bench.sh $(if $(PAGE),--page)

acceptance:  ## a day on a real pool: POOL=<url> SR=<an SR that may be lost>; docs/acceptance.rst
	@$(or $(PYTHON),python3) -m acceptance $(ARGS)

acceptance-clean:  ## take away what killed runs of that have left: POOL=<url> SR=<the same>
	@$(or $(PYTHON),python3) -m acceptance --clean $(ARGS)

docs:  ## the pages of docs/ as HTML, in build/docs; warnings are errors
	@bash tools/docs.sh

rpm:  ## the packages for dom0, in build/rpm; KEY=<gpg key> [GNUPGHOME=<directory>] signs them
	@bash tools/need-packages.sh
	@bash supp-pack/build-rpm.sh $(if $(KEY),--key "$(KEY)")

pack: rpm  ## update ISO for xapi, repository for yum: KEY=<gpg key> [GNUPGHOME=<directory>] signs them
	@python3 supp-pack/build_pack.py $(if $(KEY),--key "$(KEY)")

release:  ## what a user takes, in build/release: RPMs, ISO, repository, sdist and wheel, collection, pages; KEY=<gpg key>
	@bash tools/release.sh $(if $(KEY),--key "$(KEY)")

clean:  ## remove everything that make made
	rm -rf .venv build dist ./*.egg-info .coverage* htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
