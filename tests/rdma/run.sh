#!/bin/bash
# Run the tests marked rdma in a small virtual machine with two Soft-RoCE devices.
#
# Usage: tests/rdma/run.sh [pytest's arguments]
#        tests/rdma/run.sh --run PROGRAM.py [ARGUMENT]...    a program in place of the tests
#
# Debian's packages only; what is missing is installed (as root), what must not be installed beside
# the system's own is unpacked under build/rdma: pyverbs, whose package would bring udev, the guest's
# kernel, and Debian's Python, which is linked statically: emulated, every call into a shared library
# is a search. So .venv must be of Debian's version (3.11 on bookworm).
# Exit status 77: this machine cannot do it, and why is the last line.
set -euo pipefail
cd "$(dirname "$0")/../.."
unset PYTHONDONTWRITEBYTECODE
cannot() { echo "tests/rdma: skipped: $*"; exit 77; }

python=.venv/bin/python
[ -x $python ] || cannot "no .venv: run make test first"
command -v apt-get >/dev/null || cannot "no apt-get to fetch the guest's kernel with"
needs=()
command -v qemu-system-x86_64 >/dev/null || needs+=(qemu-system-x86)
[ -e /sbin/ip ] || [ -e /bin/ip ] || needs+=(iproute2)
[ -e /usr/lib/x86_64-linux-gnu/libibverbs.so.1 ] || needs+=(ibverbs-providers)
command -v xz >/dev/null || needs+=(xz-utils)
command -v openssl >/dev/null || needs+=(openssl)
export PATH=$PATH:/usr/sbin:/sbin
command -v mke2fs >/dev/null || needs+=(e2fsprogs)
tools=$PWD/build/rdma/tools
version=$($python -c 'import sys; print("python{}.{}".format(*sys.version_info))')
packages=$tools/venv/lib/$version/site-packages # a link to those of .venv
if [ "${#needs[@]}" -gt 0 ] || [ ! -L "$packages" ] || [ ! -e build/rdma/vm ]; then
    apt-get -qq update || cannot "apt-get update fails"
fi
if [ "${#needs[@]}" -gt 0 ]; then
    [ "$(id -u)" = 0 ] || cannot "not root, and these packages are missing: ${needs[*]}"
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${needs[@]}" \
        >/dev/null || cannot "these packages cannot be installed: ${needs[*]}"
fi
if [ ! -L "$packages" ]; then
    rm -rf "$tools" && mkdir -p "$tools"
    (cd "$tools" && apt-get -qq -o APT::Sandbox::User=root download python3-pyverbs \
        "$version-minimal" "lib$version-minimal" "lib$version-stdlib") ||
        cannot "python3-pyverbs and $version cannot be fetched"
    for package in "$tools"/*.deb; do dpkg -x "$package" "$tools"; done
    "$tools/usr/bin/$version" -m compileall -q "$tools/usr/lib/$version" >/dev/null || true # tests
    "$tools/usr/bin/$version" -m venv --without-pip "$tools/venv"
    rmdir "$packages" && ln -s "$PWD/.venv/lib/$version/site-packages" "$packages"
fi
python=$tools/venv/bin/python
export PYTHONPATH=$tools/usr/lib/python3/dist-packages
$python -c 'import pyverbs.device' || cannot "pyverbs and .venv are of different Pythons"

export RDMA_VM_CACHE=$PWD/build/rdma/vm
tests/rdma/run-in-rdma-vm.sh --prepare || cannot "the guest cannot be made ready"
if [ "${1:-}" = --run ]; then
    shift
    set -- $python "$@"
else # pytest's files go to the guest's own memory, and with it
    # Without pytest's plugins that these tests do not use: one alone takes half a minute there.
    export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
    set -- tests/rdma/side-by-side.sh $python -m pytest -p pytest_asyncio.plugin \
        -p no:cacheprovider -m rdma "$@"
    # Here: the guest finds all compiled, as pytest does it.
    "${@:2}" --collect-only -q tests/rdma tests/contract/test_{agent_contract,frontends}.py \
        >/dev/null || true
fi
# What the servers' processes and these tests open, compiled.
$python -m compileall -q blink_server backends plugins tests/rdma tests/contract
files=$PWD/build/rdma/files.img
$python tests/rdma/pack.py "$files" "$PWD"/{blink_server,backends,plugins,schemas,tests/rdma}/ \
    "$PWD"/tests/contract/ pytest pytest_asyncio.plugin openai.resources.completions tokenizers \
    jinja2 uvloop gunicorn.app.wsgiapp gunicorn.workers.gasgi pyverbs.{addr,cq,device,mr,qp} \
    blink_server.{check,cli,serve,worker} blink_server.remote.{command,door_process} \
    blink_persistent.{backend,runner} blink_persistent.agent.__main__ \
    blink_persistent.testing.frontend_site rdma_frontend.{gate,port}
status=0
tests/rdma/run-in-rdma-vm.sh --files "$files" --timeout "${RDMA_TIMEOUT:-1500}" \
    --env PYTHONUNBUFFERED=1 --env PYTEST_DISABLE_PLUGIN_AUTOLOAD "$@" || status=$?
[ $status != 125 ] || cannot "the guest does not run here"
exit $status
